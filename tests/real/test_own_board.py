"""docs/own-board.md from a placement file to the first report, as the page says it."""

import importlib
import json
import shlex

import cv2
import numpy as np
import pages
import pytest

from apps.demo import own_board
from coe.cli.start import MODULES, Exit

PAGE = pages.ROOT / "docs" / "own-board.md"


def section(heading):
    """Return the blocks of a section."""
    text = PAGE.read_text(encoding="utf-8")
    begin = text.count("\n", 0, text.index(heading))
    end = text.find("\n## ", text.index(heading))
    last = text.count("\n") if end < 0 else text.count("\n", 0, end)
    return [block for block in pages.blocks(PAGE) if begin < block.line <= last]


def module(name):
    return importlib.import_module(MODULES[name.removeprefix("coe-")])


@pytest.mark.slow
def test_the_page_leads_from_a_placement_file_to_a_report(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COE_STORE", str(tmp_path / "store"))
    first, sizes, then = section("## From a placement file")
    (tmp_path / "package_sizes.yaml").write_text(sizes.text, encoding="utf-8")
    for line in (first.text + then.text).splitlines():
        words = shlex.split(line)
        if words[0] == "python":
            own_board.main(words[3:])
            continue
        said = call(*words[1:], command=module(words[0]))
        # Exit status 1: a picture was left out of a reference, or a part is not OK.
        assert said.status in (Exit.OK, Exit.NOT_GOOD), said.words
        assert "to decide" not in said.out
    assert (tmp_path / "line7" / "overlay-SN2.png").is_file()
    results = [json.loads(line) for line in (tmp_path / "line7" / "run" / "results.jsonl").read_text().splitlines()]
    images = [row for row in results if row.get("refdes")]
    assert len(images) == 76
    assert sum(row["verdict"] == "OK" for row in images) >= 0.75 * len(images)
    assert {row["verdict"] for row in images} <= {"OK", "NG", "REVIEW"}
    assert (tmp_path / "line7" / "run" / "report.html").is_file()


def test_the_page_leads_from_places_in_pixels_to_photographs(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places, new, recipe, rest = section("## Boards without fiducials")
    (tmp_path / "places.csv").write_text(places.text, encoding="utf-8")
    (tmp_path / "boards").mkdir()
    for name in ("b1", "b2"):
        cv2.imwrite(str(tmp_path / "boards" / f"{name}.png"), np.full((789, 600, 3), 90, np.uint8))
    assert call(*shlex.split(new.text)[1:], command=module("coe-board")).status == Exit.OK
    (tmp_path / "block" / "recipe.yaml").write_text(recipe.text, encoding="utf-8")
    crop, photographed, inspect = (shlex.split(line) for line in rest.text.splitlines())
    assert call(*crop[1:], command=module("coe-experts")).status == Exit.OK
    assert len(list((tmp_path / "block" / "photos" / "screw").glob("P?-b?.png"))) == 8
    assert photographed[4] == "block/photos"
    assert inspect[3:-2] == crop[3:-2], "pictures are inspected as they were cut"
