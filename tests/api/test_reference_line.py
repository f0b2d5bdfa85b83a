"""Lines that compare pictures with references: stored or given, missing, changed, and of another part."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_parts import BOARD, DEFECT, bad, moved, noisy, part
from PIL import Image

from coe import Inspector, Picture, Verdict
from coe.board import rules
from coe.cli import experts_command, inspect
from coe.core import FailureKind, Request, Result
from coe.errors import ConfigError, RulesError, StoreError
from coe.lab.cli import bench
from coe.learn.golden_reference import learn
from coe.pictures.photographs import Photograph
from coe.results.run_file import RunIdentity
from coe.runs import inspection
from coe.store import kinds
from coe.store.references import References
from coe.store.store import Store
from experts import golden_network

ALLOW = ["golden_parts"]
OPTIONS = {"memory": "200MiB", "allow_kinds": ALLOW, "profile": None}


@pytest.fixture
def line_files(tmp_path, monkeypatch):
    """The board's file, and a store with its experts, of few weights, and the reference of U1."""
    monkeypatch.setattr(golden_network, "WIDTHS", (8, 16, 16, 16))
    board = tmp_path / "pairs.yaml"
    board.write_text(BOARD, encoding="utf-8")
    store = Store(tmp_path / "store")
    for expert in rules.load(board).experts.values():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            state = kinds.resolve(expert.kind, ALLOW).skeleton(expert).state_dict()
        store.put(expert.weights, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, state=state)
    References(store).put("pairs/U1", learn({"good": part()}).encoded("a test"))
    return board, store


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def test_a_stored_reference_tells_good_from_bad_wherever_the_part_lies_and_what_does_not_fit_is_for_a_person(
    line_files,
):
    board, store = line_files
    large = np.asarray(Image.fromarray(bad(part())).resize((320, 320), Image.Resampling.BICUBIC))
    dark = {"reference": np.zeros((160, 160, 3), np.uint8)}
    shown = {
        "good": (noisy(part(), 0), "OK", ""),
        "good, shifted": (moved(noisy(part(), 1), 5, -4), "OK", ""),
        "good, turned": (moved(noisy(part(), 2), 1, 2, 2.0), "OK", ""),
        "bad": (noisy(bad(part()), 3), "NG", ""),
        "bad, shifted": (moved(noisy(bad(part()), 4), -6, 3), "NG", ""),
        "bad, turned": (moved(noisy(bad(part()), 5), 0, 0, -2.0), "NG", ""),
        "bad and large": (large, "NG", ""),
        "another part": (part(5), "REVIEW", "does not fit"),
        # A lost colour may be a lost defect.
        "grey": (np.asarray(Image.fromarray(part()).convert("L")), "REVIEW", "grey"),
        "dark": (part(3), "REVIEW", "dark"),
    }
    pictures = [
        Picture(pixels, "U2" if name == "dark" else "U1", name=name, order="RGB", **(dark if name == "dark" else {}))
        for name, (pixels, *_) in shown.items()
    ]
    with Inspector(board, store=store, **OPTIONS) as line:
        results = {result.request.image: result for result in line.stream(pictures)}
    for name, (_, verdict, doubt) in shown.items():
        assert (name, results[name].verdict) == (name, verdict)
        assert (doubt in results[name].findings[0].doubt, results[name].findings[0].doubt == "") == (True, doubt == "")
    x1, y1, x2, y2 = DEFECT
    boxes = {"bad, shifted": (x1 - 6, y1 + 3, x2 - 6, y2 + 3), "bad and large": [2 * value for value in DEFECT]}
    for name, box in boxes.items():
        found = results[name].findings[0].boxes[0].xyxy
        assert found == pytest.approx(box, abs=6), "boxes are in pixels of the picture"


def test_a_given_reference_comes_with_the_picture(line_files, tmp_path):
    board, store = line_files
    saved = save(tmp_path / "golden.png", part(3))
    with Inspector(board, store=store, **OPTIONS) as line:
        same, other, damaged = (
            line.submit(part(3), "U2", order="RGB", reference=given).result()
            for given in (saved, part(4), b"no picture")
        )
        for component, more in (("U2", {}), ("U1", {"reference": saved})):
            with pytest.raises(ConfigError, match=f"'{component}'"):
                line.submit(part(3), component, **more)
    assert (same.verdict, same.findings[0].label, other.verdict) == (Verdict.OK, "none", Verdict.REVIEW)
    assert damaged.failure.kind is FailureKind.UNSUPPORTED
    assert "reference" in damaged.failure.reason


@pytest.mark.parametrize(
    ("was", "now", "names"),
    [
        ("reference: U1", "reference: U7", r"'pairs/U7' .*'pairs/U1'"),
        (", reference: U1", "", r"pairs.yaml:12: .*'first-day' .*'U1'"),
    ],
)
def test_a_missing_reference_is_an_error_at_start(line_files, was, now, names):
    board, store = line_files
    board.write_text(BOARD.replace(was, now), encoding="utf-8")
    with pytest.raises((StoreError, RulesError), match=names):
        Inspector(board, store=store, **OPTIONS)


def test_a_reference_that_nothing_compares_with_is_an_error_at_start(tiny, tmp_path):
    board = tmp_path / "tiny.yaml"
    board.write_text(tiny[0].read_text().replace("A: {count: 5,", "A: {count: 5, reference: A,"), encoding="utf-8")
    with pytest.raises(RulesError, match="'A' has a reference, but none of its experts compares with one"):
        Inspector(board, store=tiny[1], profile=None)


@pytest.mark.slow
def test_experts_with_a_reference_have_blobs_and_variants_like_others(line_files, call):
    board, store = line_files
    prepared = call(
        "prepare", "--board", board, "--store", store.root, "--allow-kind", "golden_parts", command=experts_command
    )
    assert prepared.status == 0, prepared.err
    assert all(set(store.manifest(f"pairs/{id}").variants) == {"fp32", "q8"} for id in ("first-day", "golden"))
    pictures = [Picture(make(part()), "U1", name=make.__name__, order="RGB") for make in (np.copy, bad)] * 3
    with Inspector(board, store=store, precision="mixed", **OPTIONS) as line:
        results = list(line.stream(pictures))
    assert not [result.error for result in results if result.error]
    assert {(result.request.image, result.verdict) for result in results} == {("copy", Verdict.OK), ("bad", Verdict.NG)}


def test_a_run_is_bound_to_its_references(line_files, tmp_path, call):
    board, store = line_files
    images = tmp_path / "images"
    save(images / "good.png", part())
    save(images / "bad.png", bad(part(3)))
    save(images / "golden.png", part(3))
    (images / "images.csv").write_text("path,component,reference\ngood.png,U1,\nbad.png,U2,golden.png\n")
    options = ("--board", board, "--images", images, "--store", store.root, "--out", tmp_path / "run")
    first = call(*options, "--allow-kind", "golden_parts", "--profile", "none", "--json", command=inspect)
    assert first.status in (0, 1), first.err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["references"] == {
        "pairs/U1": References(store).manifest("pairs/U1").checksum
    }
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count('alt="Reference of U2"') == page.count('alt="Difference of U2"') == page.count('alt="NG: U2')
    References(store).put("pairs/U1", learn({"other": noisy(part(), 1)}).encoded("another"))
    again = call(*options, "--allow-kind", "golden_parts", "--profile", "none", "--resume", command=inspect)
    assert again.status == 2
    assert "holds a run with other references ('pairs/U1')" in again.words


def test_the_report_shows_no_reference_that_came_after_the_run_began(line_files):
    board, store = rules.load(line_files[0]), line_files[1]
    item, checksum = Photograph(Path("a.png"), "U1", name="a.png"), References(store).manifest("pairs/U1").checksum
    run = RunIdentity("pairs", references={"pairs/U1": checksum})
    reference = inspection.references_of([item], board, store, run.references)
    result = Result(Request(0, "U1", "a.png"), Verdict.OK, (), 0.1)
    shown = reference(result)
    assert np.array_equal(shown.image, part())
    assert (shown.name, shown.checksum) == ("pairs/U1, version 1", checksum)
    References(store).put("pairs/U1", learn({"other": part(5)}).encoded("another"))
    with pytest.raises(StoreError, match="was replaced after the run began"):
        reference(result)


@pytest.mark.parametrize("row", ["good.png,U2,\n", "good.png,U1,good.png\n"])
def test_a_table_whose_references_are_not_those_of_the_rules_is_refused_at_start(line_files, tmp_path, call, row):
    board, store = line_files
    save(tmp_path / "images" / "good.png", part())
    (tmp_path / "images" / "images.csv").write_text(f"path,component,reference\n{row}")
    said = call("--board", board, "--images", tmp_path / "images", "--store", store.root, command=inspect)
    assert (said.status, f"'{row.split(',')[1]}'" in said.words) == (2, True)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [("../x.png", "outside the folder"), ("none.png", "there is no reference 'none.png'"), (".", "is a folder")],
)
def test_a_reference_that_cannot_be_read_is_the_error_of_its_image(tmp_path, cell, reason):
    from coe.pictures import finding

    save(tmp_path / "good.png", part())
    (tmp_path / "images.csv").write_text(f"path,component,reference\ngood.png,U2,{cell}\n")
    (item,), _ = finding.find(tmp_path, ["U2"])
    assert reason in item.failure.reason


def test_the_command_makes_references_and_names_what_it_leaves_out(line_files, tmp_path, call):
    board, store = line_files
    for seed in range(5):
        save(tmp_path / "good" / "U1" / f"{seed}.png", moved(noisy(part(), seed), seed - 2, 1))
    save(tmp_path / "good" / "U1" / "hole.png", bad(part()))
    save(tmp_path / "good" / "U1" / "else.png", part(8))

    def experts(*words):
        return call(*words, "--store", store.root, command=experts_command)

    made = experts("reference", board, "--images", tmp_path / "good")
    assert (made.status, "pairs/U1: version 2, 160 x 160, from 5 pictures" in made.out) == (1, True)
    assert ("U1/hole.png differs" in made.words, "U1/else.png does not fit" in made.words) == (True, True)
    assert json.loads(experts("show", "references/pairs/U1").out)["left_out"] == ["U1/else.png", "U1/hole.png"]
    assert "references/pairs/U1" in experts("list").out
    verify = ("verify", "--allow-kind", "golden_parts")
    assert experts(*verify).status == 0
    manifest = References(store).manifest("pairs/U1")
    (store.root / "references" / "pairs" / "U1" / manifest.file).write_bytes(b"damaged")
    verified = experts(*verify)
    assert (verified.status, "its checksum differs" in verified.words) == (1, True)
    with pytest.raises(StoreError, match="its checksum differs"):
        Inspector(board, store=store, **OPTIONS)


@pytest.mark.parametrize(("now", "names"), [("reference: U1", ": U1"), ("reference: given", "pairs.yaml")])
def test_the_command_says_what_is_missing(line_files, tmp_path, call, now, names):
    board, store = line_files
    board.write_text(BOARD.replace("reference: U1", now), encoding="utf-8")
    save(tmp_path / "good" / "U2" / "a.png", part())
    said = call("reference", board, "--images", tmp_path / "good", "--store", store.root, command=experts_command)
    assert (said.status, names in said.words) == (2, True)


def test_a_benchmark_hands_over_the_reference_of_each_picture(line_files, tmp_path, call):
    board, store = line_files
    save(tmp_path / "bad.png", bad(part()))
    save(tmp_path / "good.png", part())
    (tmp_path / "images.csv").write_text("path,component,reference\nbad.png,U2,good.png\n", encoding="utf-8")
    options = ("--board", board, "--store", store.root, "--allow-kind", "golden_parts", "--memory", "200MiB")
    ran = call("run", *options, "--images", tmp_path, "--requests", "4", "--json", "-", command=bench)
    assert ran.status == 0, ran.words
    (row,) = json.loads(ran.out)
    assert (row["images"], row["errors"]) == (4, 0)
