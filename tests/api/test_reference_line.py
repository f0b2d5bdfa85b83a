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


def test_a_stored_reference_tells_good_from_bad_wherever_the_part_lies(line_files):
    board, store = line_files
    pictures = [
        Picture(moved(noisy(make(part()), seed), right, down, degrees), "U1", name=name, order="RGB")
        for seed, (name, make, right, down, degrees) in enumerate(
            [
                ("good", np.copy, 0, 0, 0),
                ("good, shifted", np.copy, 5, -4, 0),
                ("good, turned", np.copy, 1, 2, 2.0),
                ("bad", bad, 0, 0, 0),
                ("bad, shifted", bad, -6, 3, 0),
                ("bad, turned", bad, 0, 0, -2.0),
            ]
        )
    ]
    with Inspector(board, store=store, **OPTIONS) as line:
        results = {result.request.image: result for result in line.stream(pictures)}
    assert {name: result.verdict for name, result in results.items()} == {
        name: Verdict.NG if name.startswith("bad") else Verdict.OK for name in results
    }
    box = results["bad, shifted"].findings[0].boxes[0].xyxy
    x1, y1, x2, y2 = DEFECT
    assert box == pytest.approx((x1 - 6, y1 + 3, x2 - 6, y2 + 3), abs=3), "boxes are in pixels of the picture"


def test_a_part_that_does_not_fit_is_for_a_person_with_the_reason(line_files):
    board, store = line_files
    pictures = [
        Picture(part(5), "U1", name="another part", order="RGB"),
        Picture(part(3), "U2", name="dark", order="RGB", reference=np.zeros((160, 160, 3), np.uint8)),
    ]
    with Inspector(board, store=store, **OPTIONS) as line:
        results = {result.request.image: result for result in line.stream(pictures)}
    doubts = {name: result.findings[0].doubt for name, result in results.items()}
    assert all(result.verdict is Verdict.REVIEW for result in results.values())
    assert doubts["another part"].startswith("it does not fit its reference: ")
    assert doubts["dark"] == "its reference is dark; was the light on?"


def test_a_picture_of_another_size_and_depth_is_brought_to_the_reference(line_files):
    board, store = line_files
    large = np.asarray(Image.fromarray(bad(part())).resize((320, 320), Image.Resampling.BICUBIC))
    grey = np.asarray(Image.fromarray(part()).convert("L"))
    with Inspector(board, store=store, **OPTIONS) as line:
        result = line.submit(large, "U1", order="RGB").result()
        colourless = line.submit(grey, "U1", order="RGB").result()
    assert result.verdict is Verdict.NG
    assert result.findings[0].boxes[0].xyxy == pytest.approx([2 * value for value in DEFECT], abs=6)
    assert colourless.verdict is Verdict.REVIEW, "a lost colour may be a lost defect"
    assert colourless.findings[0].doubt.startswith("it is grey and its reference has colours")


def test_a_given_reference_comes_with_the_picture(line_files, tmp_path):
    board, store = line_files
    saved = save(tmp_path / "golden.png", part(3))
    with Inspector(board, store=store, **OPTIONS) as line:
        same = line.submit(part(3), "U2", order="RGB", reference=saved).result()
        other = line.submit(part(3), "U2", order="RGB", reference=part(4)).result()
        damaged = line.submit(part(3), "U2", order="RGB", reference=b"no picture").result()
        with pytest.raises(ConfigError, match="a picture of 'U2' came without a reference"):
            line.submit(part(3), "U2")
        with pytest.raises(ConfigError, match="a picture of 'U1' came with a reference"):
            line.submit(part(3), "U1", reference=saved)
    assert same.verdict is Verdict.OK
    assert same.findings[0].label == "none"
    assert other.verdict is Verdict.REVIEW
    assert damaged.failure.kind is FailureKind.UNSUPPORTED
    assert damaged.failure.reason.startswith("the reference ")


def test_a_missing_reference_is_an_error_at_start(line_files):
    board, store = line_files
    board.write_text(BOARD.replace("reference: U1", "reference: U7"), encoding="utf-8")
    with pytest.raises(StoreError, match=r"no reference 'pairs/U7' in .*did you mean 'pairs/U1'"):
        Inspector(board, store=store, **OPTIONS)
    board.write_text(BOARD.replace(", reference: U1", ""), encoding="utf-8")
    with pytest.raises(RulesError, match=r"pairs.yaml:12: expert 'first-day' compares 'U1' with a reference"):
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


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("good.png,U2,\n", "'good.png' has no reference, but the rules of 'U2' say `reference: given`"),
        ("good.png,U1,good.png\n", "'good.png' has a reference, but the rules of 'U1' do not say"),
    ],
)
def test_a_table_without_the_needed_references_is_refused_at_start(line_files, tmp_path, call, rows, sentence):
    board, store = line_files
    save(tmp_path / "images" / "good.png", part())
    (tmp_path / "images" / "images.csv").write_text(f"path,component,reference\n{rows}")
    said = call("--board", board, "--images", tmp_path / "images", "--store", store.root, command=inspect)
    assert (said.status, sentence in said.words) == (2, True)


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
    good = tmp_path / "good"
    for seed in range(5):
        save(good / "U1" / f"{seed}.png", moved(noisy(part(), seed), seed - 2, 1))
    save(good / "U1" / "hole.png", bad(part()))
    save(good / "U1" / "else.png", part(8))
    made = call("reference", board, "--images", good, "--store", store.root, command=experts_command)
    assert made.status == 1
    assert "pairs/U1: version 2, 160 x 160, from 5 pictures" in made.out
    assert "left out: U1/hole.png differs from the others at" in made.words
    assert "left out: U1/else.png does not fit" in made.words
    shown = call("show", "references/pairs/U1", "--store", store.root, command=experts_command)
    assert json.loads(shown.out)["left_out"] == ["U1/else.png", "U1/hole.png"]
    listed = call("list", "--store", store.root, command=experts_command)
    assert "references/pairs/U1" in listed.out
    assert call("verify", "--store", store.root, "--allow-kind", "golden_parts", command=experts_command).status == 0
    manifest = References(store).manifest("pairs/U1")
    (store.root / "references" / "pairs" / "U1" / manifest.file).write_bytes(b"damaged")
    verified = call("verify", "--store", store.root, "--allow-kind", "golden_parts", command=experts_command)
    assert (verified.status, "its checksum differs" in verified.words) == (1, True)
    with pytest.raises(StoreError, match="its checksum differs"):
        Inspector(board, store=store, **OPTIONS)


def test_the_command_says_what_is_missing(line_files, tmp_path, call):
    board, store = line_files
    save(tmp_path / "good" / "U2" / "a.png", part())
    nothing = call("reference", board, "--images", tmp_path / "good", "--store", store.root, command=experts_command)
    assert nothing.status == 2
    assert "holds no picture of a component with a reference: U1" in nothing.words
    board.write_text(BOARD.replace("reference: U1", "reference: given"), encoding="utf-8")
    given = call("reference", board, "--images", tmp_path / "good", "--store", store.root, command=experts_command)
    assert "no component of pairs.yaml has a reference in the store" in given.words


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
