"""Which variant each expert gets, and who looks again in full precision."""

import pytest
from lines import board as board_of

from coe import config
from coe.errors import ConfigError
from coe.inspector.precision import VariantChoice, allowed, apply_choice, check_precision, choose
from coe.scheduler.costs import Cost
from coe.store.manifest import Agreement, PreparedVariant


def offer(agrees=1.0, below=0.0, **more):
    figures = {"images": 9, "labels_equal": agrees, "largest_score_difference": 0.0}
    agreement = None if agrees is None else Agreement(**figures, **more)
    return PreparedVariant(file="v", bytes=1, digest="", agreement=agreement, escalate_below=below)


def price(run_s, load_s, weights_bytes):
    return Cost(run_s, 0.0, load_s, weights_bytes, 0)


def table(**rows):
    return {("cpu", expert, variant): cost for expert, row in rows.items() for variant, cost in row.items()}


BIG = price(1.0, 4.0, 8)
SMALL = price(1.2, 1.0, 2)
SOUND = offer()


@pytest.mark.parametrize(
    ("mode", "devices", "offered", "expected"),
    [
        ("fp32", ["cpu"], {"int8": SOUND}, "fp32"),
        ("mixed", ["cpu"], {"fp32": SOUND, "int8": SOUND, "q8": SOUND, "fp16": SOUND}, "int8"),
        ("mixed", ["cpu"], {"q8": SOUND, "fp16": SOUND}, "fp32"),
        ("mixed", ["cuda"], {"int8": SOUND, "q8": SOUND, "fp16": SOUND}, "q8"),
        ("mixed", ["cuda"], {"q8": offer(0.9), "fp16": SOUND}, "fp16"),
        ("mixed", ["cpu", "cuda"], {"int8": SOUND, "q8": SOUND}, "fp32"),
        ("mixed", ["cpu"], {"int8": offer(0.9989)}, "fp32"),
        ("mixed", ["cpu"], {"int8": offer(0.999)}, "int8"),
        ("mixed", ["cpu"], {"int8": offer(None)}, "fp32"),
        ("mixed", ["cpu"], {"int8": offer(below=0.1, again=0.5)}, "int8"),
        ("mixed", ["cpu"], {"int8": offer(below=0.1, again=0.6)}, "fp32"),
        ("mixed", ["cpu"], {"int8": offer(below=0.1, again=1.0, generated=True)}, "int8"),
        ("mixed", ["cpu"], {}, "fp32"),
    ],
)
def test_the_smallest_variant_that_all_devices_run_and_that_agrees_is_taken(mode, devices, offered, expected):
    assert allowed(mode, offered, devices, 0.999) == expected


def test_only_lesser_variants_that_say_so_look_again_and_the_reason_is_a_sentence():
    costs = table(**{id: {"fp32": BIG, "int8": SMALL} for id in "abc"})
    offers = {"a": {"int8": offer(below=0.25)}, "b": {"int8": SOUND}, "c": {"fp32": offer(below=0.5)}}
    found = choose("mixed", offers, {"a": "int8", "b": "int8", "c": "fp32"}, costs, 0.999)
    assert found.variants == {"a": "int8", "b": "int8", "c": "fp32"}
    assert found.escalate_below == {"a": 0.25}
    costs = table(**{id: {"fp32": BIG, "int8": SMALL} for id in "abcd"})
    # d is of a kind that has no variants; nothing is said of it.
    offers = {"a": {"int8": SOUND}, "b": {}, "c": {"int8": offer(0.9)}}
    variants = {"a": "int8", "b": "fp32", "c": "fp32", "d": "fp32"}
    assert choose("mixed", offers, variants, costs, 0.999).reason == (
        "precision mixed: 3 in fp32, 1 in int8; experts take 26 B (32 B in fp32); "
        "1 run in fp32 alone (coe-experts prepare makes more, or says why not); 1 run in fp32 because "
        "no variant was measured to agree in 99.9 % of labels, at most half of them at a second look"
    )


def test_who_looks_again_is_a_successor_with_the_same_successors():
    rules = board_of({"A": 1}, {"a": "c"})
    board = apply_choice(rules, VariantChoice({"a": "fp16", "c": "q8"}, {"a": 0.25}))
    assert {id: expert.variant for id, expert in board.experts.items()} == {"a": "fp16", "c": "q8", "a@fp32": "fp32"}
    assert board.experts["a@fp32"].weights == board.experts["a"].weights
    assert set(board.graph.digraph.edges) == {("a", "c"), ("a", "a@fp32"), ("a@fp32", "c")}
    assert board.graph.probability("a@fp32") == config.ESCALATED_SHARE * board.graph.probability("a")
    assert board.router.order("A") == {"a": 0, "a@fp32": 1, "c": 2}
    assert (board.digest, board.board) == (rules.digest, rules.board)
    rules = board_of({"A": 1, "C": 1}, {"a": "c"})
    board = apply_choice(rules, VariantChoice({"a": "fp16", "c": "q8"}, {"c": 0.25}))
    assert {id: board.graph.waits_for_others(id) for id in board.experts} == {"a": False, "c": False, "c@fp32": True}
    rules = board_of({"A": 1}, {"a": "c"})
    board = apply_choice(rules, VariantChoice({"a": "fp32", "c": "fp32"}, {}))
    assert board.experts == rules.experts
    assert list(board.graph.digraph.edges) == list(rules.graph.digraph.edges)
    assert board.graph.by_probability == rules.graph.by_probability


def test_experts_that_stay_on_a_line_keep_their_variants_and_other_precisions_there_are_not():
    before = VariantChoice({"a": "q8", "gone": "int8"}, {"a": 0.5})
    after = VariantChoice({"a": "fp32", "b": "q8"}, {"b": 0.25}).after(before)
    assert after.variants == {"a": "q8", "gone": "int8", "b": "q8"}
    assert after.escalate_below == {"a": 0.5, "b": 0.25}
    assert [check_precision("precision", mode) for mode in ("fp32", "mixed")] == ["fp32", "mixed"]
    with pytest.raises(ConfigError, match="'mixd' is not a precision; did you mean 'mixed'"):
        check_precision("precision", "mixd")
