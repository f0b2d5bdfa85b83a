"""The first look at the demo: the same board, smaller experts, and its verdicts held against the truth."""

import numpy as np
import torch

from apps.demo import first_look
from apps.demo.first_look import ALLOWED, BOARD, LESSONS, Lesson, LessonPicture, data_set, missing, photographs
from apps.demo.lessons import BODY
from apps.demo.production import BoardPlace, write_truth
from apps.demo.render import COMPONENTS
from apps.demo.small import Small
from apps.demo.verdicts import Count, counted, sentence
from apps.demo.work import head_of
from coe.board import rules
from coe.board.photo_labels import served
from coe.core import Expert, Request, Result, Verdict
from coe.results.records import ResultsFile
from coe.results.run_file import RunIdentity
from coe.store import kinds
from coe.store.store import Store

RULES = rules.load(BOARD)
DEMO = rules.load("demo")
LENS = RULES.experts["led-lens"]


def test_the_first_look_is_at_the_demo_board_and_its_experts_see_every_defect_but_of_solder():
    assert {name: part.count for name, part in RULES.components.items()} == {
        name: part.count for name, part in DEMO.components.items()
    }
    shared = set(RULES.experts) & set(DEMO.experts)
    assert (set(DEMO.experts) - shared, set(RULES.experts)) == ({"solder-joints"}, shared)
    assert all(RULES.experts[name].labels == DEMO.experts[name].labels for name in shared - {"polarity"})
    assert served(RULES.components, "polarity").keys() == served(DEMO.components, "polarity").keys()
    assert all(kinds.resolve(expert.kind, ALLOWED).name == expert.kind for expert in RULES.experts.values())
    for name, component in RULES.components.items():
        labels = {label for step in component.root.walk() for label in RULES.experts[step.expert].labels}
        assert set(COMPONENTS[name].defects) - {"bridged", "lifted"} <= labels


def test_pictures_are_drawn_from_the_seed_and_some_are_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(first_look, "NUMBERS", {None: 1})
    monkeypatch.setattr(first_look, "MORE_GOOD", {})
    monkeypatch.setattr(first_look, "FEW", 1)
    monkeypatch.setattr(first_look, "COMPONENTS", {"R0402-10K": COMPONENTS["R0402-10K"]})
    first, again, other = (list(photographs(tmp_path / str(index), seed)) for index, seed in enumerate((1, 1, 2)))
    assert [shown.split for shown in first] == ["train", "val"] * 6
    pictures = [[shown.path.read_bytes() for shown in shots] for shots in (first, again, other)]
    assert pictures[0] == pictures[1]
    assert not set(pictures[0]) & set(pictures[2])


def shown(folder, defects):
    """Files in the place of pictures: of each defect one to train on and one held out."""
    folder.mkdir()
    made = []
    for defect in defects:
        for split in ("train", "val"):
            path = folder / f"{defect}-{split}.png"
            for one in (path, path.with_stem(f"{path.stem}-turned")):
                one.write_bytes(b"")
            made.append(LessonPicture(path, "LED-0805-GRN", defect, split))
    return made


def test_a_body_learns_to_pass_what_others_look_for_who_see_none_of_its_defects(tmp_path):
    pictures = shown(tmp_path / "pictures", [None, "missing", "cracked", "shifted", "reversed"])
    place = data_set(LENS, pictures, Lesson(1, 1e-3), tmp_path)
    names = sorted(path.stem for path in (place / "train" / "ok").iterdir())
    assert names == ["None-train", "None-train-turned", "reversed-train", "reversed-train-turned"]
    assert {path.name for path in (place / "val").iterdir()} == set(LENS.labels)
    place = data_set(RULES.experts["polarity"], pictures, LESSONS["polarity"], tmp_path / "behind")
    names = {path.relative_to(place).as_posix() for path in place.rglob("*.png")}
    of_parts = [("None", "ok"), ("reversed", "reversed")]
    assert names == {f"{split}/{label}/{what}-{split}.png" for what, label in of_parts for split in ("train", "val")}


def test_the_small_kind_takes_any_size_and_starts_from_a_common_head():
    kind, common = Small(), Expert("common", Small.name, BODY.labels, 64, "")
    state = head_of(dict(kind.skeleton(common).state_dict()), LENS, BODY.labels)
    module = kind.skeleton(LENS)
    module.load_state_dict(state)
    for size in (48, 64, 96):
        assert kind.forward(module, torch.zeros((2, 3, size, size), dtype=torch.uint8)).shape == (2, 4)
    prepared = [kind.preprocess(np.zeros((40, 60, 3), np.uint8), LENS)]
    (finding,) = kind.postprocess(torch.tensor([[0.0, 9.0, 0.0, 0.0]]), prepared, LENS)
    assert finding.label == "missing"
    assert kind.convert(state, LENS).keys() == state.keys()


def test_what_another_recipe_made_is_missing(tmp_path):
    store = Store(tmp_path)
    assert missing(RULES, store, "mine")
    for expert in RULES.experts.values():
        known = {"kind": expert.kind, "labels": expert.labels, "input_size": expert.input_size, "source": "mine"}
        store.put(expert.weights, state={"w": torch.zeros(1)}, **known)
    assert not missing(RULES, store, "mine")
    assert missing(RULES, store, "yours")


def test_a_run_is_held_against_the_truth(tmp_path):
    said = [("", "OK"), ("", "NG"), ("", "REVIEW"), ("missing", "NG"), ("cracked", "OK"), ("lifted", "REVIEW")]
    places = [BoardPlace("SN1", f"R{index}", "R0402-10K", defect, (1,)) for index, (defect, _) in enumerate(said)]
    (tmp_path / "images").mkdir()
    write_truth(places, tmp_path / "images")
    with ResultsFile(tmp_path / "run", RunIdentity("demo")) as results:
        for index, (place, (_, verdict)) in enumerate(zip(places, said, strict=True)):
            request = Request(index, place.component, place.file, place.serial, place.refdes)
            results.write(Result(request, Verdict(verdict), (), 0.0))
    count = counted(tmp_path / "run", tmp_path / "images")
    assert count == Count(3, 3, escapes=1, false_calls=1, good_reviewed=1, bad_reviewed=1)
    assert "33.3% of 6" in sentence(count)
