"""What proves that an expert learned something, and what is told of its rates."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from exams import exam
from hypothesis import given, settings
from hypothesis import strategies as st
from lamp import STATED, lamp, picture
from narrow import Narrow
from PIL import Image
from thorough import THOROUGH

from coe.cli import experts_command
from coe.core import Expert
from coe.errors import ConfigError
from coe.helpers.rates import (
    Rate,
    extreme_deviation,
    extreme_factor,
    prediction_factor,
    tolerance_factor,
    trials_needed,
)
from coe.inspector import weights_used
from coe.pictures.photographs import Purpose
from coe.results.summary import RunFigures, summarise
from coe.store.kinds import TrainingPlan
from coe.store.store import Store
from coe.testing import rules_from
from experts import classifier_train, labelled_folder
from experts.proof import MANY, halved, unproven_answers, unproven_objects
from experts.taken import TakenPictures

CHIP = Expert("chip", "resnet18", ("dark", "bright"), 32, "b/chip", frozenset({"dark"}))
SMALL = Narrow()


def pictures(root, each, *, told_apart=True, seed=0):
    chance = np.random.default_rng(seed)
    for label in CHIP.labels:
        (root / label).mkdir(parents=True)
        low = 150 if told_apart and label == "bright" else 0
        for number in range(each):
            pixels = chance.integers(low, low + 100, (24, 24, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.png")
    return root


def plan(data, epochs=8, **more):
    made = TrainingPlan(data, data, epochs, batch=8, learning_rate=1e-3, threads=1)
    return replace(made, **more)


def train(data, epochs=8, **more):
    return SMALL.train(CHIP, plan(data, epochs, **more), lambda *_: None)


def test_one_answer_for_all_is_never_proven_and_answers_that_know_nothing_rarely():
    for truth in ([0] * 95 + [1] * 5, [0] * 50 + [1] * 50, [0, 1, 2] * 30):
        for answer in set(truth):
            assert unproven_answers(truth, [answer] * len(truth))
    rare = [0] * 95 + [1] * 5
    assert unproven_answers(rare, [0] * 94 + [1] * 5 + [0]) == "", "a rare label that is found proves much"
    assert "no better" in unproven_answers([0, 1] * 20, [0] * 20 + [1] * 20)
    chance = np.random.default_rng(7)
    proven = sum(not unproven_answers(chance.permutation([0, 1] * 15), [0, 1] * 15) for _ in range(60))
    assert proven <= 0.05 * 60 + 3 * (0.05 * 0.95 * 60) ** 0.5


@pytest.mark.parametrize(("each", "proven"), [(1, False), (2, False), (4, True), (10, True)])
def test_few_pictures_prove_nothing_even_if_all_are_right(each, proven):
    truth = [0] * each + [1] * each
    assert (unproven_answers(truth, truth) == "") is proven
    if not proven:
        assert f"only {2 * each} held-out pictures" in unproven_answers(truth, truth)
    assert "too few" in unproven_answers([0] * 30, [0] * 30), "pictures of one label tell nothing"
    assert unproven_answers([], [])


@pytest.mark.parametrize(
    ("found", "objects", "proven"), [(0, 50, False), (1, 20, False), (3, 3, False), (5, 5, True), (12, 60, True)]
)
def test_a_detector_must_find_something(found, objects, proven):
    assert (unproven_objects(found, objects) == "") is proven


def test_few_held_out_pictures_choose_nothing_and_many_are_halved(tmp_path):
    few, many, own = pictures(tmp_path / "few", 10), pictures(tmp_path / "many", 120), tmp_path / "own"
    assert MANY == 40
    for seed, split in enumerate(("train", "val", "test")):
        pictures(own / split, 3, seed=seed)

    def parts(data):
        taken = TakenPictures(data)
        read = labelled_folder.read(SMALL, CHIP, plan(data), taken)
        counts = [len(part.labels) for part in read.values()]
        by_part = {part: [p.path for p in taken.pictures if p.part is part] for part in Purpose}
        assert counts == [len(paths) for paths in by_part.values()]
        assert len({path for paths in by_part.values() for path in paths}) == sum(counts), "no picture is in two parts"
        return by_part

    assert [len(paths) for paths in parts(few).values()] == [16, 0, 4]
    halves = parts(many)
    assert [len(paths) for paths in halves.values()] == [192, 24, 24]
    assert sum(p.parent.name == "dark" for p in halves[Purpose.TEST]) == 12, "each label is in both halves"
    own_parts = parts(own)
    assert [{p.parent.parent.name for p in paths} for paths in own_parts.values()] == [{"train"}, {"val"}, {"test"}]
    first, second = halved(range(9), 1)
    assert (len(first), len(second), {*first, *second}) == (4, 5, set(range(9)))


def test_the_figures_are_of_pictures_that_chose_no_epoch(tmp_path, monkeypatch):
    """Without a part to choose by the last epoch counts, however good an earlier one looked on the held-out part."""
    sizes, real = [], classifier_train.answers

    def watched(*given):
        sizes.append(len(given[2].labels))
        return real(*given)

    monkeypatch.setattr(classifier_train, "answers", watched)
    few = train(pictures(tmp_path / "few", 10, told_apart=False), epochs=3)
    assert (few.metrics["epoch"], few.metrics["held_out"]) == (3, 4)
    assert few.unproven
    sizes.clear()
    many = train(pictures(tmp_path / "many", 26), epochs=2, held_out=0.8)
    assert (sizes, many.metrics["held_out"]) == ([20, 20, 22], 22)
    assert many.metrics["accuracy_at_least"] == pytest.approx(Rate(round(22 * many.metrics["accuracy"]), 22).lower())
    assert many.learned is not None
    assert len(many.learned) == 10 + 20, "what is held out was not learned"


@pytest.mark.parametrize("good", [True, False])
def test_an_expert_that_tells_nothing_apart_is_unproven_and_a_good_one_is_not(tmp_path, good):
    trained = train(pictures(tmp_path, 10, told_apart=good), epochs=6 if good else 2, held_out=0.5)
    assert (trained.unproven == "") is good


def test_what_was_learned_as_well_measures_nothing(tmp_path):
    pictures(tmp_path / "train", 6)
    pictures(tmp_path / "val", 4)  # the same pictures
    trained = train(tmp_path, epochs=1)
    assert trained.metrics["held_out"] < 8
    assert "accuracy" not in trained.metrics or trained.metrics["held_out"] > 0
    assert trained.unproven
    assert any("two parts" in remark for remark in trained.remarks)


@pytest.mark.parametrize("place", ["loose.png", "dark/deeper/x.png", "train/dark/x.png"])
def test_pictures_of_which_nobody_knows_the_label_are_refused(tmp_path, place):
    pictures(tmp_path, 4)
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    with pytest.raises(ConfigError, match=r"loose|deeper|\['bright', 'dark'\]"):
        train(tmp_path, epochs=1)


def test_a_board_says_which_of_its_experts_are_unproven(tmp_path):
    store, trained = Store(tmp_path), {"proven": "", "unproven": "it says ok to all", "unknown": None}
    entries = []
    for name, why in trained.items():
        known = {"metrics": {"in_doubt": 0.0}, "unproven": why, "exam": exam(missing=True)}
        store.put(f"b/{name}", kind="k", labels=("ok", "bad"), input_size=32, state={}, **known)
        entries.append(f"{name}: {{kind: k, labels: [ok, bad], input: 32, then: {{ok: OK, bad: NG}}}}")
    components = ", ".join(f"{name}: {{inspect: {name}}}" for name in trained)
    board = rules_from(f"{{board: b, experts: {{{', '.join(entries)}}}, components: {{{components}}}}}")
    told = weights_used.warnings(board, weights_used.read_manifests(board, store))
    assert told == ("expert 'unproven' is unproven: it says ok to all",)
    known = weights_used.read_manifests(board, store)
    alike = {weights: one.model_copy(update={"unproven": "few pictures"}) for weights, one in known.items()}
    (of_all,) = weights_used.warnings(board, alike)  # a board of small sets is told once, not once for each expert
    assert all(f"'{name}'" in of_all for name in trained)
    few = known["b/proven"].model_copy(update={"metrics": {"in_doubt": 0.0, "smallest_px": 2.5}})
    (small,) = weights_used.warnings(board, {"b/proven": few})
    assert ("'proven'" in small, "2.5 pixels" in small) == (True, True)
    _, row = weights_used.exam_rows(board, {"b/proven": few})
    assert (row.expert, row.is_told, row.note in small) == ("proven", True, True)
    strips = few.model_copy(update={"metrics": {"in_doubt": 0.0, "shorter_px": 11.0}})
    (narrow,) = weights_used.warnings(board, {"b/proven": strips})
    assert "11 pixels" in narrow
    enough = few.model_copy(update={"metrics": {"in_doubt": 0.0, "smallest_px": 9.0, "shorter_px": 32.0}})
    assert weights_used.warnings(board, {"b/proven": enough}) == ()
    figures = RunFigures("b", warnings=told)
    assert summarise([], figures).to_json()["warnings"] == list(told)
    again = RunFigures("b", answered=1, warnings=("another",)).after(figures)
    assert again.warnings == (*told, "another")


def test_how_narrow_pictures_are_is_measured_and_labels_that_are_never_told_right_are_named(tmp_path):
    taken = TakenPictures(tmp_path)
    for number, height in enumerate((20, 10, 10)):
        (tmp_path / f"{number}.png").write_bytes(bytes([number]))
        taken.add(tmp_path / f"{number}.png", np.zeros((height, 200, 3), np.uint8), Purpose.LEARN)
    assert taken.measures(CHIP) == {"shorter_px": pytest.approx(1.6)}
    assert not replace(taken, pictures=[replace(picture, aspect=0.5) for picture in taken.pictures]).measures(CHIP)
    truth, said = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([1, 2, 1, 0, 0, 0])
    (told,) = classifier_train.HeldAnswers(truth, said, 0.0).unseen_labels(("a", "b", "c", "d"))
    assert "2 of 'a', 3 of 'c'" in told
    assert not [*classifier_train.HeldAnswers(truth, truth, 0.0).unseen_labels(("a", "b", "c"))]


RULES = """board: b
experts:
  lamp: {kind: onnx, labels: [dark, bright], input: 32, reject: [dark]}
components:
  strict: {count: 1, inspect: lamp, min_score: 0.9}
  plain: {count: 1, inspect: lamp}
  other: {count: 1, inspect: lamp}
"""


@pytest.fixture
def board(tmp_path, call):
    (tmp_path / "b.yaml").write_text(RULES)
    lamp(tmp_path / "lamp.onnx")
    options = ("--kind", "onnx", "--input", "32", "--labels", "dark,bright", *STATED, "--no-prepare")
    words = ("import", "b/lamp", tmp_path / "lamp.onnx", *options, "--store", tmp_path / "store")
    said = call(*words, command=experts_command)
    assert said.status == 0, said.err
    return tmp_path / "b.yaml"


@pytest.fixture
def evaluate(board, tmp_path, call):
    def run(*options):
        arguments = (board, "--images", tmp_path / "labelled", "--store", tmp_path / "store", *options)
        return call("evaluate", *arguments, command=experts_command)

    return run


def test_rates_are_told_by_expert_and_component_with_their_bounds(evaluate, tmp_path):
    levels = {
        "dark": {"10": 10, "20": 20, "30": 30, "escape": 230},
        # `faint` is bright, and not sure enough for `strict`.
        "bright": {"200": 200, "210": 210, "220": 220, "235": 235, "240": 240, "faint": 150, "called": 20},
    }
    for label, named in levels.items():
        for name, level in named.items():
            picture(tmp_path / "labelled" / "lamp" / label / f"{name}.png", level)
    said = evaluate("--report", tmp_path / "page.html")
    assert said.status == 1, said.err
    assert "lamp/bright/called.png = lamp/dark/20.png" in said.words, "they contradict each other"
    assert "lamp: 9 of 11 as labelled" in said.out
    strict, plain = [line.split() for line in said.out.splitlines() if line.startswith("lamp ") and "%" in line]
    assert strict == ["lamp", "strict", "9", "of", "11", "1", "of", "4", "75.14%", "2", "of", "7", "65.87%"]
    assert plain == ["lamp", "plain,", "other", "9", "of", "11", "1", "of", "4", "75.14%", "1", "of", "7", "52.07%"]
    for name, label in (("dark/escape", "dark"), ("bright/called", "bright"), ("bright/faint", "bright")):
        assert f"lamp/{name}.png: expected {label}" in said.out
    page = (tmp_path / "page.html").read_text()
    for words in ("1 of 4", "2 of 7", "lamp/dark/escape.png", "an escape", "data:image/jpeg"):
        assert words in page
    assert "lamp/dark/10.png" not in page


def test_the_report_shows_escapes_of_all_experts_first(evaluate, board, tmp_path):
    more = "  also: {kind: onnx, labels: [dark, bright], input: 32, reject: [dark], weights: b/lamp}\ncomponents:\n"
    board.write_text(RULES.replace("components:\n", more) + "  last: {count: 1, inspect: also}\n")
    picture(tmp_path / "labelled/also/bright/called.png", 20)
    picture(tmp_path / "labelled/lamp/dark/escape.png", 230)
    assert evaluate("--report", tmp_path / "page.html").status == 1
    page = (tmp_path / "page.html").read_text()
    assert 0 < page.index("lamp/dark/escape.png") < page.index("also/bright/called.png")


def test_a_picture_that_cannot_be_read_is_no_success_and_weights_that_do_not_fit_are_refused(evaluate, tmp_path, board):
    picture(tmp_path / "labelled/lamp/dark/a.png", 5)
    assert evaluate("--report", tmp_path / "page.html").status == 0
    assert "every picture is judged as it is labelled" in (tmp_path / "page.html").read_text()
    (tmp_path / "labelled/lamp/dark/b.png").write_bytes(b"no picture")
    said = evaluate("--report", tmp_path / "page.html")
    assert (said.status, "not judged: lamp/dark/b.png" in said.words) == (3, True)
    assert "1 of 1 as labelled" in said.out
    assert "lamp" in (tmp_path / "page.html").read_text()
    picture(tmp_path / "labelled/lamp/dark/a.png", 5)
    board.write_text(RULES.replace("[dark, bright]", "[dark, bright, blue]"))
    said = evaluate()
    assert (said.status, "its weights 'b/lamp' are" in said.words) == (2, True)


def test_labels_and_experts_of_no_board_are_refused(evaluate, board, tmp_path, call):
    picture(tmp_path / "labelled/lamp/none/a.png", 5)
    said = evaluate()
    assert (said.status, "it is not a detector" in said.words) == (2, True)
    arguments = ("--images", tmp_path / "labelled", "--escapes", "0.5", "--store", tmp_path / "store")
    said = call("calibrate", board, *arguments, command=experts_command)
    assert (said.status, "it is not a detector" in said.words) == (1, True)
    picture(tmp_path / "labelled/lump/dark/a.png", 5)
    assert evaluate().status == 2


def test_pictures_that_the_expert_learned_from_are_refused(tmp_path, call):
    for label, level in (("ok", 200), ("bad", 20)):
        for number in range(3):
            picture(tmp_path / "learned" / label / f"{number}.png", level + number)
    (tmp_path / "b.yaml").write_text(RULES.replace("onnx", "narrow").replace("dark", "bad").replace("bright", "ok"))
    store = ("--store", tmp_path / "store")
    options = ("--kind", "narrow", "--input", "32", "--labels", "bad,ok", "--epochs", "1", "--no-prepare")
    said = call("train", "b/lamp", "--data", tmp_path / "learned", *options, *store, command=experts_command)
    assert said.status == 0, said.err
    picture(tmp_path / "labelled/lamp/ok/another-name.png", 201)
    picture(tmp_path / "labelled/lamp/ok/new.png", 190)
    images = ("--images", tmp_path / "labelled", *store)
    said = call("evaluate", tmp_path / "b.yaml", *images, command=experts_command)
    assert (said.status, "lamp/ok/another-name.png" in said.words, "as labelled" in said.out) == (2, True, False)
    (tmp_path / "labelled/lamp/ok/another-name.png").unlink()
    assert call("evaluate", tmp_path / "b.yaml", *images, command=experts_command).status in (0, 1)


@pytest.mark.parametrize(
    ("events", "trials", "lower", "upper"),
    [
        (0, 10, 0.0, 0.2589),
        (1, 10, 0.0051, 0.3942),
        (5, 10, 0.2224, 0.7776),
        (10, 10, 0.7411, 1.0),
        (3, 400, 0.0020, 0.0193),
    ],
)
def test_the_bounds_of_clopper_and_pearson(events, trials, lower, upper):
    assert Rate(events, trials).lower() == pytest.approx(lower, abs=1e-4)
    assert [Rate(events, trials).is_above(share) for share in (0.05, 0.1, 0.5)] == [
        Rate(events, trials).lower() > share for share in (0.05, 0.1, 0.5)
    ]
    assert Rate(events, trials).upper() == pytest.approx(upper, abs=1e-4)
    assert str(Rate(events, trials)).startswith(f"{events} of {trials}, at most ")


@settings(max_examples=12 * THOROUGH)
@given(st.integers(1, 60), st.data())
def test_a_bound_lies_on_its_side_of_the_share_and_grows_with_the_events(trials, data):
    events = data.draw(st.integers(0, trials - 1))
    rate, more = Rate(events, trials), Rate(events + 1, trials)
    assert rate.lower() <= rate.share <= rate.upper() <= more.upper()
    assert rate.upper(0.9) <= rate.upper(0.99)


@given(st.floats(0.001, 0.5), st.floats(0.5, 0.999))
def test_so_many_trials_without_an_event_prove_a_rate_and_fewer_do_not(rate, confidence):
    number = trials_needed(rate, confidence)
    assert Rate(0, number).upper(confidence) <= rate * (1 + 1e-9)
    assert number == 1 or Rate(0, number - 1).upper(confidence) > rate * (1 - 1e-9)


@pytest.mark.parametrize(
    ("count", "share", "factor"),
    [(3, 0.05, 7.656), (10, 0.05, 2.911), (10, 0.01, 3.981), (50, 0.05, 2.065), (100, 0.01, 2.684)],
)
def test_tolerance_factors_of_the_tables(count, share, factor):
    assert tolerance_factor(count, share) == pytest.approx(factor, abs=6e-4)


@pytest.mark.parametrize(
    ("count", "more", "factor"), [(3, 0, 3.372), (10, 0, 1.923), (20, 0, 1.772), (10, 10, 1.729 * 1.1**0.5)]
)
def test_prediction_factors_are_quantiles_of_t_widened_by_the_mean(count, more, factor):
    """A deviation that is known from `more` values needs a smaller factor."""
    assert prediction_factor(count, 0.05, more) == pytest.approx(factor, abs=6e-4)


@pytest.mark.parametrize(("count", "more", "factor"), [(10, 0, 2.266), (20, 0, 2.050), (20, 5, 1.991), (400, 0, 1.866)])
def test_extremes_need_a_larger_factor(count, more, factor):
    # From 200,000 and 60,000 samples of further values; the last from the quantile, (0.5772 + log(-log 0.95)) / 1.2825.
    assert extreme_factor(count, 0.05, more) == pytest.approx(factor, abs=0.02)
    assert extreme_factor(1, 0.05, 5) > extreme_factor(2, 0.05, 5), "one value, whose deviation is known from others"


def test_one_odd_value_widens_the_deviation_of_extremes_less_than_that_of_the_values():
    usual = -np.log(-np.log((np.arange(1000) + 0.5) / 1000))
    assert extreme_deviation(usual) == pytest.approx(math.pi / 6**0.5, rel=0.01)
    few = usual[25::50]
    odd = np.append(few, 12.0)
    assert extreme_deviation(odd) / extreme_deviation(few) < 0.8 * odd.std(ddof=1) / few.std(ddof=1)


@given(st.integers(1, 10_000_000), st.sampled_from([0.9, 0.95, 0.975, 0.99]))
def test_bounds_are_those_of_the_formula_where_it_has_one(trials, confidence):
    # No event: (1 - p)^n = 1 - confidence. All events but one: 1 - p^n = 1 - confidence.
    assert Rate(0, trials).upper(confidence) == pytest.approx(-math.expm1(math.log1p(-confidence) / trials), rel=1e-9)
    assert Rate(trials - 1, trials).upper(confidence) == pytest.approx(confidence ** (1 / trials), rel=1e-9)
