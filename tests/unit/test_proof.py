"""Held-out figures: three parts, bounds, and experts that are no better than one answer for all."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from exams import exam
from narrow import Narrow
from PIL import Image

from coe.core import Expert
from coe.errors import ConfigError
from coe.helpers.rates import Rate
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
        counts = [len(part.labels) for part in (read.training, read.choosing, read.held_out)]
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
    assert few.metrics["epoch"] == 3
    assert few.metrics["held_out"] == 4
    assert few.unproven
    sizes.clear()
    many = train(pictures(tmp_path / "many", 26), epochs=2, held_out=0.8)
    assert sizes == [20, 20, 22]
    assert many.metrics["held_out"] == 22
    assert many.metrics["accuracy_at_least"] == pytest.approx(Rate(round(22 * many.metrics["accuracy"]), 22).lower())
    assert many.learned is not None
    assert len(many.learned) == 10 + 20, "what is held out was not learned"


def test_an_expert_that_tells_nothing_apart_is_unproven_and_a_good_one_is_not(tmp_path):
    assert train(pictures(tmp_path / "good", 10), epochs=6, held_out=0.5).unproven == ""
    useless = train(pictures(tmp_path / "bad", 10, told_apart=False), epochs=2, held_out=0.5)
    assert useless.unproven


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
    with pytest.raises(ConfigError, match=r"loose|deeper|beside it \['bright', 'dark'\]"):
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
    assert "'proven'" in small
    assert "2.5 pixels" in small
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
