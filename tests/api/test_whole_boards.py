"""Pictures of whole boards through `coe-inspect`, `coe-experts overlay` and an `Inspector`, with real networks."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from drawn_boards import PARTS, UM, Pose, disc, draw, layout, recipe, table, truth
from PIL import Image

from coe.board import rules
from coe.cli import experts_command, inspect
from coe.core import Verdict
from coe.errors import ConfigError
from coe.pictures.filling import WatchedFolder
from coe.placement import read_board
from coe.placement.run_source import ArrivingSource, WholeBoards
from coe.results.records import read


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def files(folder, parts=PARTS, **changes):
    (folder / "parts.csv").write_text(table(parts), encoding="utf-8")
    (folder / "recipe.yaml").write_text(recipe(**changes), encoding="utf-8")
    return ["--recipe", folder / "recipe.yaml"]


def judged(result):
    return result.verdict, [(f.label, round(f.score, 4), len(f.boxes)) for f in result.findings]


def test_each_component_of_each_board_has_one_result_and_that_of_its_crop(tiny, tmp_path, call):
    board, store = tiny
    placed, boards, crops = files(tmp_path), tmp_path / "boards", tmp_path / "crops"
    save(boards / "S1.png", draw(layout(), Pose(turn_deg=2, x_px=5)))
    save(boards / "S2.png", draw(layout(), without=["F1"]))
    save(boards / "S10.png", draw(layout(), Pose(turn_deg=-1), seed=7))
    (boards / "S3.png").write_bytes(b"\x89PNG torn")
    (boards / "S4.webp").write_bytes(b"RIFF")
    (boards / "notes.txt").write_text("no picture")
    common = ("--board", board, "--store", store, "--memory", "100MB", "--threads", 1, "--profile", "none")
    said = call(*common, "--images", boards, *placed, "--out", tmp_path / "run", command=inspect)
    assert said.status == 3, said.err
    assert "notes.txt" in said.words
    results = {result.request.image: result for result in read(tmp_path / "run" / "results.jsonl")}
    assert list(results) == [f"{name}/{p.refdes}" for name in ("S1.png", "S2.png", "S3.png", "S4.webp", "S10.png")
                             for p in PARTS]  # fmt: skip
    for part in PARTS:
        result = results[f"S2.png/{part.refdes}"]
        assert (result.verdict, result.request.serial) == (Verdict.REVIEW, "S2")
        assert result.findings[0].doubt.startswith("the board is not registered: no fiducial was found within 2.5 mm")
        assert "the picture of the board" in str(results[f"S3.png/{part.refdes}"].error)
        assert "save it as PNG" in str(results[f"S4.webp/{part.refdes}"].error)
    for serial in ("S1", "S10"):
        for crop in read_board(boards / f"{serial}.png", layout(), serial).pictures():
            save(crops / serial / f"{crop.refdes}__{crop.component}.png", crop.image)
    call(*common, "--images", crops, "--out", tmp_path / "run-crops", command=inspect)
    alone = {(r.request.serial, r.request.refdes): r for r in read(tmp_path / "run-crops" / "results.jsonl")}
    assert len(alone) == 2 * len(PARTS)
    for (serial, refdes), result in alone.items():
        assert judged(results[f"{serial}.png/{refdes}"]) == judged(result)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert page.count('<div class="whole"') == 3  # S3 and S4 cannot be shown
    assert page.count("<polygon") == 2 * len(PARTS)
    assert "not registered: no fiducial was found" in page
    assert page.count("It was not cut out of the picture of its board, nor were 3 other components.") == 1
    again = call(*common, "--images", boards, *placed, "--out", tmp_path / "run", "--resume", "-q", command=inspect)
    assert again.status == 3
    files(tmp_path, tolerance_um=31)
    other = call(*common, "--images", boards, *placed, "--out", tmp_path / "run", "--resume", command=inspect)
    assert other.status == 2
    assert "holds a run with other placements, another board recipe, or none" in other.words


def test_a_watch_that_goes_on_knows_whole_boards_and_their_serials_as_before(tiny, tmp_path):
    board, folder = rules.load(tiny[0]), tmp_path / "boards"
    save(folder / "S1.png", draw(layout(), Pose(turn_deg=2, x_px=5)))
    before, after = (ArrivingSource(WatchedFolder(folder), board, layout(), None) for _ in range(2))
    before.arrive("S1.png")
    after.resume(before.items)
    assert [item.name for item in after.items] == [item.name for item in before.items]
    for item in before.items:
        assert np.array_equal(after.pixels(item.name), before.pixels(item.name)), "a crop, not the whole board"
    assert after.view("S1") is not None
    save(folder / "sub" / "S1.png", draw(layout()))
    for source in (before, after):
        assert {"two pictures have one serial" in str(item.error) for item in source.arrive("sub/S1.png").items} == {
            True
        }


def test_a_unit_with_a_bad_mark_is_skipped_by_name_and_never_ok(tiny, tmp_path, call):
    board, store = tiny
    panel = {
        "panel": {"array": {"rows": 1, "columns": 2, "pitch": [9, 0]}},
        "bad_mark": {"at": [4, 13], "diameter": 1.2, "look": "bright", "level": 150},
    }
    placed = files(tmp_path, [replace(PARTS[0], component="C")], **panel)
    drawn = layout([PARTS[0]], **panel)
    grey, mark = draw(drawn)[..., 0].astype(float), drawn.marks["r1c2"]
    disc(grey, *truth(drawn, Pose())[0].pixels(np.array([[mark.x_mm, mark.y_mm]]))[0], 1.2e3 / UM, 250)
    save(tmp_path / "boards" / "S1.png", np.repeat(grey.round().clip(0, 255).astype(np.uint8)[..., None], 3, axis=2))
    line = ("--memory", "100MB", "--threads", 1, "--profile", "none", "--max-errors", 0)
    at = ("--images", tmp_path / "boards", "--out", tmp_path / "run")
    said = call("--board", board, "--store", store, *line, *at, *placed, command=inspect)
    assert said.status == 1
    assert "skipped: not inspected because of bad marks: 1 board, S1-r1c2" in " ".join(said.out.split())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["skipped"], summary["skipped_boards"]) == (1, ["S1-r1c2"])
    assert (summary["boards_decided"], summary["errors"], summary["images"]) == (1, 0, 1)
    assert summary["boards"]["S1-r1c2"] == "REVIEW"
    assert "skipped, and not inspected" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--expect", "counts"], "--expect"),
        (["--parts", "pnp.csv"], "not a parts file"),
        (["--parts", "none.csv"], "none.csv"),
        (["--images", "nowhere"], "nowhere"),
        ([], "no pictures of boards"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(tiny, tmp_path, call, monkeypatch, more, complaint):
    monkeypatch.chdir(tmp_path)
    placed = files(tmp_path)
    (tmp_path / "pnp.csv").write_text("Ref,PosX,PosY,Rot,Side,Val\nP1,1,2,0,top,A\n")
    (tmp_path / "boards").mkdir()
    words = ("--board", tiny[0], "--store", tiny[1], "--images", tmp_path / "boards", *placed)
    said = call(*words, *more, command=inspect)
    assert (said.status, complaint in said.words, "Traceback" in said.err) == (2, True, False)
    (tmp_path / "parts.csv").unlink()
    assert "coe-board parts FILE" in call(*words, command=inspect).words


def test_two_pictures_of_one_serial_and_a_folder_that_cannot_be_looked_into_are_refused(tmp_path):
    for name in ("a/S1.png", "b/S1.jpg"):
        save(tmp_path / name, draw(layout()))
    with pytest.raises(ConfigError, match=r"two pictures have the serial 'S1': a/S1\.png and b/S1\.jpg"):
        WholeBoards(layout(), tmp_path)
    (tmp_path / "a" / "more").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is a broken link; it may hold pictures of boards"):
        WholeBoards(layout(), tmp_path / "a")


@pytest.mark.parametrize("name", ["S2.png.part", ".in.S2.png.", ".S2.png.Xa1b", "S2", "S2.cr2", "S2.tmp", "S2.bmp~"])
def test_every_other_file_is_a_board(tmp_path, name):
    save(tmp_path / "S1.png", draw(layout()))
    (tmp_path / name).write_bytes((tmp_path / "S1.png").read_bytes() if "." in name else b"")
    others = {".DS_Store", "S1.txt", "Thumbs.db", "README", "S1.CR3"}
    for other in others:
        (tmp_path / other).write_bytes(b"a note\n")
    boards = WholeBoards(layout(), tmp_path)
    assert {item.serial for item in boards.items} == {"S1", "S2"}
    assert {other.path.name for other in boards.skipped} == others
    assert name in ("S2", "S2.cr2") or all(item.failure for item in boards.items if item.serial == "S2")


def test_what_a_layout_leaves_open_is_said(tiny, tmp_path, call):
    two = {"diameter": 1, "search": 2.5, "at": {"F1": [1.5, 1.5], "F2": [18.5, 14.5]}}
    parts = [part if part.component == "A" else replace(part, component="") for part in PARTS]
    placed = files(tmp_path, parts, fiducials=two, components={"A": {"size": [2.4, 1.2]}})
    save(tmp_path / "boards" / "S1.png", draw(layout(parts, fiducials=two)))
    common = ("--board", tiny[0], *placed)
    said = call(
        "overlay", tmp_path / "boards" / "S1.png", *common, "--out", tmp_path / "o.png", command=experts_command
    )
    ran = call(
        *(*common, "--store", tiny[1], "--images", tmp_path / "boards", "--out", tmp_path / "run"),
        *("--memory", "100MB", "--threads", 1, "--profile", "none"),
        command=inspect,
    )
    assert len(read(tmp_path / "run" / "results.jsonl")) == 2
    warnings = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["warnings"]
    (warning,) = (one for one in warnings if not one.startswith("expert"))
    assert "turned by 180 degrees" in warning
    assert warning[1:] in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for words in (" ".join(said.out.split()), ran.words):
        assert ": P2, P4" in words
        assert "the fiducials coincide if the board is turned by 180 degrees: such a board goes unnoticed" in words


def test_the_overlay_is_written_for_a_person(tiny, tmp_path, call):
    placed = files(tmp_path)
    save(tmp_path / "S1.png", draw(layout(), Pose(turn_deg=1)))
    save(tmp_path / "bad.png", draw(layout(), without=["F3"]))
    (tmp_path / "torn.png").write_bytes(b"\x89PNG torn")
    arguments = ("--board", tiny[0], *placed, "--out", tmp_path / "o.png")
    said = call("overlay", tmp_path / "S1.png", *arguments, command=experts_command)
    assert said.status == 0, said.err
    assert re.match(
        r"4 components, residual \d\.\d um, (49|50)\.\d{4} um a pixel, rotated by (0\.9|1\.0)\d deg", said.out
    )
    with Image.open(tmp_path / "o.png") as written:
        assert written.width == 480
    said = call("overlay", tmp_path / "bad.png", *arguments, command=experts_command)
    assert said.status == 1
    assert "not registered: no fiducial was found within 2.5 mm of where F3 should be" in " ".join(said.out.split())
    said = call("overlay", tmp_path / "torn.png", *arguments, command=experts_command)
    assert said.status == 3
    assert "torn.png: the picture of the board" in said.words
    said = call("overlay", tmp_path / "S1.png", "--board", tiny[0], command=experts_command)
    assert "give --recipe: where the components lie on a board" in said.words


def test_crops_become_photographs(tiny, tmp_path, call):
    board, _ = tiny
    placed, boards, photos = files(tmp_path), tmp_path / "boards", tmp_path / "photos"
    save(boards / "S1.png", draw(layout(), Pose(turn_deg=2, x_px=5)))
    save(boards / "S2.png", draw(layout(), without=["F1"]))
    command = ("crop", board, *placed, "--images", boards, "--out", photos, "--label", "good")
    said = call(*command, command=experts_command)
    assert said.status == 1, "S2 is not registered"
    assert "S2" in said.err
    for picture in read_board(boards / "S1.png", layout(), "S1").pictures():
        with Image.open(photos / picture.component / "good" / f"{picture.refdes}-S1.png") as saved:
            assert np.array_equal(np.asarray(saved)[:, :, ::-1], np.asarray(picture.image))
    assert len(list(photos.rglob("*.png"))) == len(PARTS)
    first = photos / "A" / "good" / "P1-S1.png"
    first.write_bytes(b"mine")
    again = call(*command, command=experts_command)
    assert f"; {len(PARTS)} existed" in " ".join(again.out.split())
    assert first.read_bytes() == b"mine"
    assert call(*command[:-1], "nice", command=experts_command).status == 2
