"""What a line is put together from, and the boards that it has."""

from dataclasses import replace
from pathlib import Path

import pytest

from coe.board.parts_list import PlacedPart
from coe.errors import ConfigError, StoreError
from coe.inspector import precision
from coe.inspector.asked_boards import AskedBoard, asked_boards
from coe.inspector.line_boards import LineBoard, LineBoards, Names, Register
from coe.inspector.line_options import LineOptions
from coe.inspector.measuring import measure, stored
from coe.inspector.opening import line_up
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import RulesChanged
from coe.scheduler.plan import Plan
from coe.store.kinds import Comparing, FileKind, ModuleKind
from coe.store.manifest import Agreement, Manifest, PreparedVariant
from coe.testing import Experiment, rules_from

BOARD = """
board: b
experts:
  a: {kind: net, input: 64, labels: [ok, bad], reject: [bad]}
  b: {kind: net, input: 32, labels: [ok, bad], reject: [bad]}
  f: {kind: file, input: 32, labels: [ok, bad], reject: [bad]}
components:
  A: {count: 2, inspect: a}
  B: {count: 1, inspect: b}
  F: {count: 1, inspect: f}
"""
RUN_S = {"fp32": 4.0, "fp16": 2.0, "q8": 5.0, "int8": 1.0}


class Net(ModuleKind):
    name, task = "net", "classify"
    preprocess = postprocess = skeleton = forward = None


class File(FileKind):
    name, task, suffix = "file", "classify", ".x"
    preprocess = postprocess = open = None


class Model(File):
    network = None


class ComparingModel(Model, Comparing):
    compare = None


class Bench:
    """A device that notes what it measures: twice the area takes twice the time, a byte of a file one second."""

    threads = 1
    memory_bytes = None
    holds_bodies = False

    def __init__(self, manifests, damaged=""):
        self.manifests, self.measured, self.damaged = manifests, [], damaged

    def fixed_bytes(self, experts, executors):
        return 0

    def measure(self, expert):
        if expert.variant == "int8" and expert.id in self.damaged:
            raise StoreError(f"{expert.id} is damaged")
        self.measured.append((expert.kind, expert.input_size, expert.variant))
        size = stored(self.manifests[expert.weights], expert.variant).whole_bytes
        return Cost(RUN_S[expert.variant] * expert.input_size**2 / 1024, 0.0, float(size), size, 8)


def manifest(expert, checksum="", **sizes):
    more = {"agreement": Agreement(images=9, labels_equal=1.0, largest_score_difference=0.0), "escalate_below": 0.25}
    variants = {name: PreparedVariant(file=name, bytes=size, digest="", **more) for name, size in sizes.items()}
    own = {"id": expert.weights, "kind": expert.kind, "labels": expert.labels, "input_size": expert.input_size}
    return Manifest(**own, file="w", bytes=80, checksum=checksum, variants=variants)


@pytest.fixture
def board():
    return rules_from(BOARD)


@pytest.fixture
def manifests(board):
    sizes = {"a": {"fp32": 88, "fp16": 44, "int8": 22}, "b": {"int8": 20}, "f": {}}
    return {expert.weights: manifest(expert, **sizes[id]) for id, expert in board.experts.items()}


def known(*boards_and_manifests):
    """The register of a line that knows these experts, under their own names."""
    register = Register("fp32")
    for board, manifests in zip(boards_and_manifests[::2], boards_and_manifests[1::2], strict=True):
        register.manifests |= manifests
        register.experts |= board.experts
    return register


KINDS = {"net": Net(), "file": File()}


def test_one_expert_of_each_kind_and_variant_is_measured_the_others_are_worked_out(board, manifests):
    bench = Bench(manifests)
    a, b, f = board.experts.values()
    experts = [a, b, f, replace(a, variant="int8"), replace(b, variant="int8")]
    costs = measure(experts, {"cpu": bench}, manifests, KINDS, lambda _: None)
    # a in fp32 runs from its blob, b from its weights as trained: those are two sorts.
    nets = [("net", *sort) for sort in ((32, "fp32"), (64, "fp32"), (64, "int8"))]
    assert sorted(bench.measured) == [("file", 32, "fp32"), *nets]
    assert {key: (cost.per_image_s, cost.load_s, cost.weights_bytes) for key, cost in costs.items()} == {
        ("cpu", "a", "fp32"): (16.0, 88.0, 88),
        ("cpu", "b", "fp32"): (4.0, 80.0, 80),
        ("cpu", "f", "fp32"): (4.0, 80.0, 80),
        ("cpu", "a", "int8"): (4.0, 22.0, 22),
        ("cpu", "b", "int8"): (1.0, 20.0, 20),
    }


@pytest.mark.parametrize("mode", ["fp32", "mixed"])
def test_in_fp32_nothing_else_is_measured_and_mixed_puts_second_looks_beside_the_experts(board, manifests, mode):
    bench, said = Bench(manifests), []
    line_options = LineOptions.of("b", precision=mode, say=said.append)
    costs = line_up(line_options, board, known(board, manifests), {"cpu": bench}, KINDS, None)
    experts = precision.apply_choice(board, costs.choice).experts
    if mode == "fp32":
        assert ({variant for _, _, variant in bench.measured}, set(experts)) == ({"fp32"}, {"a", "b", "f"})
        assert not any("precision" in sentence for sentence in said)
    else:
        variants = {"a": "int8", "b": "int8", "f": "fp32", "a@fp32": "fp32", "b@fp32": "fp32"}
        assert {id: expert.variant for id, expert in experts.items()} == variants
        weights = {id: costs("cpu", id).weights_bytes for id in experts}
        assert weights == {"a": 22, "b": 20, "f": 80, "a@fp32": 88, "b@fp32": 80}
        assert all(word in said[-1] for word in ("1 in fp32", "2 in int8", "122 B", "248 B"))
    # The costs of an earlier line give the same line, unmeasured.
    bench.measured.clear()
    line_options = line_options.but(experiment=Experiment(costs=costs))
    again = line_up(line_options, board, known(board, manifests), {"cpu": bench}, KINDS, None)
    assert (again.choice, bench.measured) == (costs.choice, [])
    assert [again("cpu", id) for id in experts] == [costs("cpu", id) for id in experts]


@pytest.mark.parametrize(
    ("file", "device", "unprepared"),
    [(File(), "cpu", 2), (Model(), "cpu", 3), (Model(), "cuda:0", 2), (ComparingModel(), "cpu", 2)],
)
def test_nothing_prepared_is_no_error_but_a_sentence(board, manifests, file, device, unprepared):
    bare = {weights: one.model_copy(update={"variants": {}}) for weights, one in manifests.items()}
    said = []
    line_options, kinds = LineOptions.of("b", precision="mixed", say=said.append), KINDS | {"file": file}
    costs = line_up(line_options, board, known(board, bare), {device: Bench(bare)}, kinds, None)
    assert {*costs.choice.variants.values()} == {"fp32"}
    assert sum("precision" in sentence for sentence in said) == 1
    assert all(word in said[-1] for word in (f"{unprepared} run in fp32", "coe-experts prepare"))
    with pytest.raises(ConfigError):
        costs(device, "a@fp32")


def test_further_experts_of_a_known_architecture_are_worked_out_and_the_others_keep_what_they_have(board, manifests):
    bench = Bench(manifests)
    line_options = LineOptions.of("b", precision="mixed")
    first = line_up(line_options, board, known(board, manifests), {"cpu": bench}, KINDS, None)
    bench.measured.clear()
    larger = rules_from(BOARD.replace("b: {kind: net, input: 32", "c: {kind: net, input: 128").replace(": b}", ": c}"))
    expert = larger.experts["c"]
    register = known(board, manifests, larger, {expert.weights: manifest(expert, fp32=352, int8=88)})
    later = line_up(line_options, larger, register, {"cpu": bench}, KINDS, None, first)
    assert bench.measured == []
    costs = later.by_variant
    assert (costs["cpu", "c", "fp32"].per_image_s, costs["cpu", "c", "fp32"].load_s) == (64.0, 352.0)
    assert {key: costs[key] for key in first.by_variant} == first.by_variant
    assert later.choice.variants["a"] == first.choice.variants["a"]
    assert set(precision.apply_choice(larger, later.choice).experts) >= {"a", "c", "f"}


@pytest.mark.parametrize(
    ("damaged", "variants", "told"),
    [("", ["int8", "int8"], ""), ("a", ["fp32", "int8"], "1 of 2"), ("ab", ["fp32", "fp32"], "2 of 2")],
    ids=["none", "one", "all"],
)
def test_an_int8_that_cannot_be_opened_is_measured_with_another_or_told(board, damaged, variants, told):
    sizes = {"a": {"int8": 22}, "b": {"int8": 10}, "f": {}}
    manifests = {expert.weights: manifest(expert, **sizes[id]) for id, expert in board.experts.items()}
    said = []
    line_options, bench = LineOptions.of("b", precision="mixed", say=said.append), Bench(manifests, damaged)
    costs = line_up(line_options, board, known(board, manifests), {"cpu": bench}, KINDS, None)
    assert [costs.choice.variants[id] for id in "ab"] == variants
    if variants[1] == "int8":
        assert costs("cpu", "b").per_image_s == 1.0
    assert [told in note for note in said if "a is damaged" in note] == [True] * bool(told)


def read(name, checksum="1", *, reject="bad", more="", then=""):
    """A board with one expert, `joint`, whose weights have a checksum."""
    expert = f"joint: {{kind: k, labels: [ok, bad], input: 8, reject: [{reject}]{more}}}"
    rules = rules_from(f"board: {name}\nexperts:\n  {expert}\ncomponents:\n  R: {{count: 1, inspect: joint{then}}}\n")
    known = {expert.weights: manifest(expert, checksum) for expert in rules.experts.values()}
    return LineBoard(AskedBoard(name.upper()), rules, known, {}, {}, {"R": 192}, frozenset(), 1.0)


def joint(register, board):
    return register.enrol(board, alone=False).member.experts["joint"]


@pytest.mark.parametrize(
    ("differs", "id"),
    [
        ({}, "joint"),
        ({"then": ", min_score: 0.5"}, "joint"),  # rules that a step states do not make another expert
        ({"checksum": "2"}, "b/joint"),
        ({"reject": "ok"}, "b/joint"),
        ({"more": ", temperature: 2"}, "b/joint"),
    ],
)
def test_equal_experts_of_one_name_are_one_expert(differs, id):
    register = Register("fp32")
    assert [joint(register, read("a")).id, joint(register, read("b", **differs)).id] == ["joint", id]


def test_names_mean_the_same_as_long_as_the_line_runs_and_versions_have_keys_of_their_own():
    register = Register("fp32")
    experts = [joint(register, read("a", checksum)) for checksum in ("1", "2", "3", "1")]
    assert [expert.id for expert in experts] == ["joint", "a/joint", "a/joint#2", "joint"]
    # Weights that were replaced have another name, and lie at the same place in the store.
    assert [expert.weights for expert in experts] == ["a/joint", "a/joint#2", "a/joint#3", "a/joint"]
    assert set(register.places.values()) == {"a/joint"}
    register = Register("fp32")
    boards = [register.enrol(read("a", checksum), alone=number == 0) for number, checksum in enumerate("1221")]
    assert [board.key for board in boards] == ["", "a", "a", ""]
    assert Names().of("x", "wished") == "wished"


class Line:
    """A line's boards, and the rules that were told."""

    def __init__(self, *boards):
        self.register, self.told = Register("fp32"), []
        self.boards = LineBoards([self.register.enrol(board, alone=False) for board in boards], self.told.append)

    def switch(self, board):
        rules = (board.rules.router, board.rules.graph)
        now, then = (RulesChanged(*rules, CostTable({}), Plan((), ()), {}, {}) for _ in range(2))
        self.boards.switch([self.register.enrol(board, alone=False)], now, then)
        return now, then


@pytest.mark.parametrize("images", [0, 1, 2])
def test_rules_stay_until_the_last_image_by_them_has_its_result(images):
    line = Line(read("a"))
    for number in range(images):
        line.boards.accept("a", number)
    now, then = line.switch(read("b"))
    for number in range(images):
        assert line.told == [now]
        line.boards.answered(number)
        if number + 1 < images:
            line.boards.answered(number)
    assert line.told == ([now, then] if images else [then])
    assert line.boards.accept("a", 9) is None


def test_a_new_version_takes_the_new_images_and_a_board_that_comes_back_keeps_its_own():
    line = Line(read("a"))
    old = line.boards.accept("a", 1)
    line.switch(read("a", "2"))
    assert (old.key, line.boards.accept("a", 2).key) == ("a", "a#2")
    line = Line(read("a"))
    line.boards.accept("a", 1)
    now, _ = line.switch(read("b"))
    _, then = line.switch(read("a"))
    assert line.told == [now, then]  # nothing of b is under way
    line.switch(read("b"))
    assert [board.name for board in line.boards.ending_after([])] == ["b", "a"]
    line.boards.answered(1)
    assert [board.name for board in line.boards.ending_after([])] == ["b"]


def test_boards_are_named_as_their_file_or_their_user_says_who_may_ask_for_several():
    line = Line(read("a"), read("b"))
    assert line.boards.named("a") is line.boards.named("A")
    for name, named in (("c", "'c'.*a, b"), ("", "several boards")):
        with pytest.raises(ConfigError, match=named):
            line.boards.named(name)
    a, parts = AskedBoard("A"), (PlacedPart("R", "R1"),)
    assert (asked_boards("A"), asked_boards(["A", Path("b.yaml")])) == ((a,), (a, AskedBoard(Path("b.yaml"))))
    assert asked_boards({"A": 3, "B": 1}) == (AskedBoard("A", 3.0), AskedBoard("B", 1.0))
    assert asked_boards("A", parts) == (AskedBoard("A", parts=parts),)
    assert asked_boards(["A", "B"], {"B": parts}) == (a, AskedBoard("B", parts=parts))


@pytest.mark.parametrize(
    ("board", "parts", "named"),
    [
        (7, None, "board=7"),
        ("", None, "board=''"),
        ([], None, r"board=\[\]"),
        (["A", 5], None, "name"),
        (["A", "A"], None, "twice"),
        ({"A": 0}, None, "'A'.* mix 0"),
        ({"A": "much"}, None, "'A'.* mix 'much'"),
        (["A", "B"], [PlacedPart("R", "R1")], "2 boards"),
        (["A", "B"], {"C": "c.csv"}, "parts: 'C'.*A, B"),
        ("A", [], r"parts=\[\]"),
        ("A", 5, "parts=5"),
    ],
)
def test_what_makes_no_sense_is_refused(board, parts, named):
    with pytest.raises(ConfigError, match=named):
        asked_boards(board, parts)
