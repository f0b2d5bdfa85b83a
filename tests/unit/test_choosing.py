"""`coe-experts choose`: which kind is taken for which pictures, on what it stands, and what it refuses."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from golden_parts import noisy, part
from picture_folders import saved
from PIL import Image

from coe.board import rules
from coe.cli import experts_command
from coe.core import Finding, Shown
from coe.errors import ConfigError
from coe.learn import choosing
from coe.learn.choosing import CandidateKind, CrossValidated
from coe.pictures.photographs import Photograph
from coe.store import kinds, runnable_kinds
from coe.store.exam import Exam, ExamItem
from coe.store.kinds import ModuleKind, Trained, TrainingPlan
from coe.store.store import Store
from experts.geometry import letterbox


class Brightness(ModuleKind):
    """Tells labels apart by the mean brightness of the pictures that it learned; `blind` sees nothing of it."""

    task = "classify"

    def __init__(self, name="brightness", *, blind=False, least=2):
        self.name, self.blind, self.least_of_label = name, blind, least
        self.learned = []

    def preprocess(self, image, expert):
        return letterbox(image, expert.input_size, (0, 0, 0))

    def skeleton(self, expert):
        return torch.nn.Linear(1, len(expert.labels)).eval()

    def forward(self, module, images):
        mean = torch.zeros(len(images)) if self.blind else images.float().mean(dim=(1, 2, 3)) / 255
        return -(mean[:, None] - module.bias[None]).abs()

    def postprocess(self, outputs, prepared, expert):
        places = outputs.argmax(dim=1).tolist()
        return [Finding(expert.id, expert.variant, expert.labels[place], 0.9, margin=0.5) for place in places]

    def train(self, expert, plan, progress):
        assert plan.photographs is not None
        self.learned.append([one.name for one in plan.photographs])
        means = {label: [] for label in expert.labels}
        for one in plan.photographs:
            means[one.label].append(np.asarray(Image.open(one.path)).mean() / 255)
        bias = torch.tensor([float(np.mean(means[label])) for label in expert.labels])
        return Trained({"weight": torch.zeros(len(bias), 1), "bias": bias}, expert.labels, {})


def photographs(root, counts):
    found = []
    for label, count in counts.items():
        (root / label).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((16, 16, 3), (180 if label == "good" else 60) + number, np.uint8)
            path = root / label / f"{number}.png"
            Image.fromarray(pixels).save(path)
            found.append(Photograph(path, "C1", name=f"{label}/{number}.png", label=label, good=label == "good"))
    return tuple(found)


def plan(found):
    return TrainingPlan(Path(), Path(), 1, 1, 1e-3, threads=1, photographs=found)


def judged(kind, found, store):
    (candidate,) = choosing.candidates(store, "b/C1", plan(found), [kind], 16)
    folds = choosing.folds_of(store, [candidate], plan(found))
    return choosing.judged(store, candidate, found, folds, lambda *_: None, lambda: 0.0)


def test_each_picture_is_judged_by_an_expert_that_has_not_learned_it(tmp_path):
    found, kind = photographs(tmp_path / "photos", {"good": 6, "bad": 6}), Brightness()
    assert judged(kind, found, Store(tmp_path / "store")).right == (True,) * 12
    names = {one.name for one in found}
    assert sorted(name for learned in kind.learned for name in names - set(learned)) == sorted(names)


@pytest.mark.parametrize(
    ("counts", "most_learned"),
    [({"good": 6}, 5), ({"good": 6, "bad": 2}, 7), ({"good": 20, "bad": 3}, 19), ({"good": 60, "bad": 30}, 60)],
)
def test_few_pictures_are_judged_one_at_a_time_and_rare_labels_make_no_folds_larger(tmp_path, counts, most_learned):
    found = photographs(tmp_path / "photos", counts)
    folds = choosing.folds_of(Store(tmp_path / "store"), [], plan(found))
    assert max(len(found) - len(fold) for fold in folds) == most_learned


def test_how_photographs_look_is_known_once_each_was_decoded(tmp_path):
    found = photographs(tmp_path / "photos", {"good": 4, "bad": 4})
    found = (*found, replace(found[0], name="bad/copy.png", label="bad", good=False))
    looks = choosing.seen(found, None)
    for path in {one.path for one in found}:
        path.unlink()
    assert choosing.under_two_labels(found, looks) == [("good/0.png", "bad/copy.png")]
    assert choosing.side_of(looks[0]) == 64
    assert choosing.different(found, looks) == found[:-1]


def test_a_series_of_one_part_is_out_as_a_whole(tmp_path):
    class InPairs(Brightness):
        def parts_of(self, expert, plan, images, labels):
            asked.append([*labels])
            return [place // 2 for place, _ in enumerate(images)]

    asked = []
    found, kind = photographs(tmp_path / "photos", {"good": 8, "bad": 8}), InPairs()
    assert judged(kind, found, Store(tmp_path / "store")).right == (True,) * 16
    out = [[one not in learned for one in (photo.name for photo in found)] for learned in kind.learned]
    assert len(out) == 4
    assert all(fold[::2] == fold[1::2] for fold in out)
    assert asked == [[photo.label for photo in found]], "once for all labels, for each time loads a network"


def test_the_kind_with_the_fewest_escapes_and_false_calls_is_taken_and_among_equals_the_first(tmp_path):
    found, store = photographs(tmp_path / "photos", {"good": 8, "bad": 8}), Store(tmp_path / "store")
    blind, first, second = (
        judged(kind, found, store) for kind in (Brightness("blind", blind=True), Brightness("one"), Brightness("two"))
    )
    assert choosing.best_of([blind, first, second], found) is first
    assert choosing.chance_of(first, blind) < 0.05
    assert choosing.chance_of(first, second) == 1.0
    escapes, false_calls = blind.rates(found)
    assert {escapes.share, false_calls.share} == {0.0, 1.0}


def answered(name, escapes, false_calls, *, turned_passed=0, polarity=False):
    """Return how a kind judged ten bad pictures and ten good ones, and 20 turned ones in its exam."""
    passed = (*[True] * escapes, *[False] * (10 - escapes), *[False] * false_calls, *[True] * (10 - false_calls))
    right = tuple(said == (place >= 10) for place, said in enumerate(passed))
    kind = Brightness(name)
    kind.learns_turned = True
    candidate = CandidateKind(kind, None, replace(plan(()), polarity=polarity), None)
    exam = (ExamItem(item=Shown.TURNED, shown=20, passed=turned_passed),)
    return CrossValidated(candidate, passed, right, 1.0, exam=exam)


TEN_BAD_TEN_GOOD = tuple(
    Photograph(Path("x.png"), "C1", name="x.png", label=label, good=label == "good")
    for label in [*["bad"] * 10, *["good"] * 10]
)


@pytest.mark.parametrize(
    ("results", "taken", "because"),
    [
        ([answered("a", 1, 0), answered("b", 0, 3)], "b", ["fewer escapes than a", "0, not 1"]),
        ([answered("a", 1, 0), answered("b", 0, 5)], "a", ["fewer false calls than b", "4 false calls"]),
        ([answered("a", 1, 2), answered("b", 1, 1)], "b", ["fewer false calls than a", "1, not 2"]),
        ([answered("a", 1, 1, turned_passed=15), answered("b", 1, 1)], "a", ["as well as b", "before"]),
        ([answered("a", 1, 1, turned_passed=15, polarity=True), answered("b", 1, 1)], "b", ["as well as a", "exam"]),
        ([answered("a", 1, 1), answered("b", 1, 1)], "a", ["as well as b", "before"]),
        ([answered("a", 1, 1)], "a", ["no other kind"]),
    ],
)
def test_an_escape_counts_above_a_false_call_and_the_reason_is_said(results, taken, because):
    best = choosing.best_of(results, TEN_BAD_TEN_GOOD)
    assert best.candidate.name == taken
    said = choosing.why(best, results, TEN_BAD_TEN_GOOD)
    assert [word for word in because if word not in said] == [], said


def test_parts_are_also_learned_turned_and_layers_tuned_where_something_is_left_to_win(tmp_path):
    known = [answered("a", 1, 0).candidate]
    passing, stopped = answered("a", 1, 0, turned_passed=18), answered("a", 1, 0)
    perfect = answered("a", 0, 0, turned_passed=18)

    def tried(*results, polarity=False):
        return [one.name for one in choosing.turned_too(known, results, polarity=polarity)]

    assert tried(passing) == ["a (turned)"]
    assert tried(passing, polarity=True) == []
    assert tried(stopped) == []
    assert tried(passing, perfect) == [], "nothing is left to win"
    known[0].kind.learns_turned = False
    assert tried(passing) == []
    found, store = photographs(tmp_path / "photos", {"good": 4, "bad": 4}), Store(tmp_path / "store")
    right, blind = judged(Brightness(), found, store), judged(Brightness(blind=True), found, store)
    tuned = CandidateKind(Brightness(), right.candidate.expert, replace(plan(()), freeze=("a",)), None)
    assert choosing.is_superfluous(tuned, [blind, right])
    assert not choosing.is_superfluous(tuned, [blind])
    assert not choosing.is_superfluous(right.candidate, [right])


def test_a_kind_is_asked_only_if_it_can_learn_and_says_why_not(tmp_path):
    store = Store(tmp_path / "store")
    few = plan(photographs(tmp_path / "few", {"good": 9, "bad": 3}))
    good_only = plan(photographs(tmp_path / "good", {"good": 9}))
    known = [Brightness("two", least=2), Brightness("four", least=4)]
    assert [one.kind.name for one in choosing.candidates(store, "b/C1", few, known, 16)] == ["two"]
    assert choosing.candidates(store, "b/C1", good_only, known, 16) == []
    assert [bool(choosing.obstacle(kind, few.photographs)) for kind in known] == [False, True]

    class Refusing(Brightness):
        def train(self, expert, plan, progress):
            raise ConfigError("no")

    found, store = photographs(tmp_path / "photos", {"good": 4, "bad": 4}), Store(tmp_path / "store")
    refused, other = judged(Refusing(), found, store), judged(Brightness(), found, store)
    assert refused.failure == "no"
    assert choosing.best_of([refused, other], found) is other
    assert choosing.best_of([refused], found) is None


@pytest.fixture
def run(call, tmp_path, monkeypatch):
    """Return a function that chooses for the folder `photos`, as if the kind `probe` was another."""

    def choose(*given, kind=None, board="line7.yaml"):
        if kind is not None:
            monkeypatch.setattr(kinds, "resolve", lambda *_: kind)
        words = (tmp_path / board, "--images", tmp_path / "photos", "--store", tmp_path / "store", "--kinds", "probe")
        return call("choose", *words, "--threads", "1", "--no-prepare", *given, command=experts_command)

    return choose


def test_the_command_learns_stores_and_writes_a_board_that_loads(run, tmp_path):
    photographs(tmp_path / "photos/C1", {"good": 6, "scratch": 4})
    for empty in ("C1/bent", "C2/good", "@eaDir/x", ".idea"):
        (tmp_path / "photos" / empty).mkdir(parents=True)
    shutil.copy(tmp_path / "photos/C1/good/0.png", tmp_path / "photos/C1/good/copy.png")
    said = run(kind=Brightness())
    assert said.status == 0, said.err
    assert "taken as good: 6 in C1/good; as bad: 4 in C1/scratch" in said.out
    assert ("brightness is chosen" in said.out, "no polarity is assumed for C1" in said.words) == (True, True)
    assert "no pictures in C1/bent, C2/good\n" in said.err
    assert rules.load(tmp_path / "line7.yaml").experts["C1"].reject == {"scratch"}
    manifest = Store(tmp_path / "store").manifest("line7/C1")
    assert (manifest.kind, set(manifest.labels)) == ("brightness", {"good", "scratch"})


class Examined(Brightness):
    """Took an exam: it lets turned parts pass, and learned whether that is a defect."""

    def train(self, expert, plan, progress):
        item = ExamItem(item=Shown.TURNED, shown=20, passed=1 if plan.polarity else 19)
        trained = super().train(expert, plan, progress)
        exam = Exam(items=(item,), left_out=("C1/good/odd.png",))
        return replace(trained, exam=exam, metrics={"smallest_px": 2.5})


@pytest.mark.parametrize(
    ("given", "answer", "written", "passes"),
    [
        ((), None, [None, True], ["R1"]),
        (("--polarity", "R1"), None, [True, True], []),
        (("--polarity", "-"), None, [False, True], ["R1"]),
        ((), "R1", [True, True], []),
    ],
)
def test_polarity_is_known_given_or_asked_and_what_passes_is_shown(
    run, tmp_path, monkeypatch, given, answer, written, passes
):
    if answer is not None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr(typer, "prompt", lambda *_, **__: answer)
    for name in ("R1", "SOT23"):
        photographs(tmp_path / "photos" / name, {"good": 6, "bad": 6})
    said = run(*given, kind=Examined())
    assert said.status == 0, said.err
    loaded = rules.load(board := tmp_path / "line7.yaml")
    assert [loaded.components[name].polarity for name in ("R1", "SOT23")] == written
    exam = Store(tmp_path / "store").manifest("line7/R1").exam
    (neighbour,) = [item for item in exam.items if item.item is Shown.NEIGHBOUR]
    assert (neighbour.passed, neighbour.shown) == (6, 6), "good parts of the other component look the same here"
    assert "R1: its smallest training objects" in said.words, "small defects may pass"
    assert ("19 of 20" in said.out) is bool(passes)
    assert [line for line in said.out.splitlines() if "still passes:" in line and "R1" in line] != [] or not passes
    assert "odd.png" in said.out
    again = run(*given)
    assert again.out.endswith(board.read_text().partition("\n")[2]), "the lines to put into a board that is there"


def test_pictures_of_twelve_bits_are_learned_with_the_option_that_their_error_names(run, tmp_path):
    for one in photographs(tmp_path / "photos/C1", {"good": 6, "scratch": 6}):
        Image.fromarray(np.asarray(Image.open(one.path)).astype(np.uint16)[..., 0] * 16).save(one.path)
    said = run(kind=Brightness())
    assert (said.status, "--bits 12" in said.err) == (2, True)
    assert run("--bits", 12).status == 0
    assert rules.load(tmp_path / "line7.yaml").bits == 12


def test_a_board_file_that_is_there_stays_and_the_lines_to_put_in_are_printed(run, tmp_path):
    photographs(tmp_path / "photos/C1", {"good": 4, "bad": 4})
    entries = "experts: {a: {kind: x, labels: [y], input: 64, then: {y: OK}}}, components: {C1: {inspect: a}}"
    (board := tmp_path / "line7.yaml").write_text(f"{{board: seven, {entries}}}", encoding="utf-8")
    said = run(kind=Brightness())
    assert said.status == 0, said.err
    assert "C1: {kind: brightness, labels: [bad, good]" in said.out
    assert board.read_text(encoding="utf-8").endswith(f"{entries}}}")
    assert Store(tmp_path / "store").manifest("seven/C1").kind == "brightness"


@pytest.mark.parametrize(
    ("folders", "why"),
    [
        (("C1/bad",), "no pictures of good parts"),
        (("C1/good/deep/er",), "contains a folder"),
        (("C1/good/one", "C1/good/two"), "good/one, good/two"),
        (("line1/C1/good",), "the folder in which C1 lies"),
        (("C1/good", "C1"), "is not in a folder of a label"),
        (("NG/good",), "is a verdict"),
        (("",), "beside the folders of components"),
        ((), "holds no pictures"),
        (("C1/good",), "no kind can be compared on 1 good"),  # both are the same
        (("C1/good", "C1/none"), "C1/none: is that good or bad?"),
        (("good", "missing"), "the name of a component is expected"),
    ],
)
def test_pictures_that_do_not_make_sense_are_refused(run, tmp_path, folders, why):
    (tmp_path / "photos").mkdir()
    for folder in folders:
        (tmp_path / "photos" / folder).mkdir(parents=True, exist_ok=True)
        for number in range(2):
            Image.new("RGB", (64, 64), (90, 120, 60)).save(tmp_path / "photos" / folder / f"{number}.png")
    said = run()
    assert (said.status, why in said.err) == (2, True)
    assert not (tmp_path / "line7.yaml").exists()


def test_the_same_picture_under_two_labels_is_refused_and_named(run, tmp_path):
    root, pictures = tmp_path / "photos/C1", [noisy(part(), seed)[40:104, 40:104] for seed in range(10)]
    saved(root / "good", *pictures[:6])
    saved(root / "bad", *(255 - pixels for pixels in pictures[6:]), pictures[3])
    said = run(kind=Brightness())
    assert (said.status, "good/03.png" in said.err, "bad/04.png" in said.err) == (2, True, True)
    Image.open(root / "bad/04.png").save(root / "bad/04.jpg", quality=95)
    (root / "bad/04.png").unlink()
    said = run()
    assert said.status == 0, "a person may mean it"
    assert "C1/bad/04.jpg = C1/good/" in said.words


def test_a_kind_that_calls_good_and_bad_alike_is_unproven(run, tmp_path):
    photographs(tmp_path / "photos/C1", {"good": 6, "bad": 6})
    for blind in (True, False):
        said = run(kind=Brightness(blind=blind), board=f"{blind}.yaml")
        assert said.status == 0, said.err
        assert bool(Store(tmp_path / "store").manifest(f"{blind}/C1").unproven) is blind
        assert ("unproven" in said.err) is blind
    few = CrossValidated(CandidateKind(Brightness(), None, plan(()), None), (False, True), (True, True))
    assert choosing.unproven(few, photographs(tmp_path / "few", {"bad": 1, "good": 1})) is None


def test_a_component_and_a_kind_that_are_not_there_are_named(run, tmp_path, monkeypatch):
    photographs(tmp_path / "photos/R1", {"good": 3})
    said = run("--polarity", "R2")
    assert (said.status, "'R2'" in said.err, "R1" in said.err) == (2, True, True)
    monkeypatch.setattr(runnable_kinds, "GROUP", "kinds.of.nobody")
    said = run()
    assert (said.status, "'probe'" in said.err) == (2, True)
