"""Whole demo boards: the crops show what the pictures of the single components show, and get the same verdicts."""

import cv2
import numpy as np
import pytest

from apps.demo import first_look, whole
from apps.demo.production import lot, take
from apps.demo.render import COMPONENTS
from coe import Inspector, Picture
from coe.board import rules
from coe.placement import blind_to, lay_out, overlay, overlay_of, read_board, read_places, read_recipe
from coe.store.store import Store

SEED = 1


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "parts.csv").write_text(whole.parts(), encoding="utf-8")
    (folder / "recipe.yaml").write_text(whole.recipe(), encoding="utf-8")
    return lay_out(read_recipe(folder / "recipe.yaml"), read_places(folder / "parts.csv"))


def places(board):
    listed = lot(board + 1, SEED)
    return [place for place in listed if place.serial == listed[-1].serial]


def test_a_board_holds_the_parts_of_its_rules(layout):
    counts = {name: sum(site.component == name for site in layout.sites) for name in COMPONENTS}
    assert counts == {name: component.count for name, component in rules.load("demo").components.items()}
    assert blind_to(layout) == ()
    for name in ("demo", "first_look"):
        layout.check(rules.load(name).components, name)


def test_the_crops_of_a_board_show_its_single_pictures(layout):
    chosen = places(0)
    board = read_board(whole.whole_board(chosen, np.random.default_rng(3)), layout, "SN1")
    crops = {picture.refdes: picture.image for picture in board.pictures()}
    assert len(crops) == len(chosen)
    assert board.location.residual_um < 4  # a fifth of a pixel
    for place in chosen:
        alone, crop = take(place), crops[place.refdes]
        assert crop.shape == alone.shape
        # Nothing is moved or turned: without their grain the pictures are alike.
        smooth = [cv2.GaussianBlur(each, (0, 0), 1.5).astype(float) for each in (alone, crop)]
        assert np.abs(smooth[0] - smooth[1])[3:-3, 3:-3].mean() < 3, place
    assert overlay_of(board).shape[1] == overlay(board.rgb, layout, board.location).shape[1]


def test_a_build_writes_what_coe_inspect_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "whole_board", lambda places, rng: np.zeros((20, 20, 3), np.uint8))
    whole.main(["--images", str(tmp_path / "boards"), "--boards", "2"])
    assert sorted(path.name for path in (tmp_path / "boards").iterdir()) == ["DB-001-0001.png", "DB-001-0002.png"]
    assert {path.name for path in tmp_path.iterdir()} == {"boards", "boards.truth.csv", "parts.csv", "recipe.yaml"}


@pytest.mark.slow
def test_first_look_experts_judge_crops_as_they_judge_single_pictures(layout, tmp_path):
    store = Store(tmp_path / "store")
    first_look.build(tmp_path / "images", store, seed=SEED)
    chosen = [place for board in range(first_look.BOARDS) for place in places(board)]
    alone = [Picture(take(p), p.component, p.serial, p.refdes, f"{p.serial}/{p.refdes}", "RGB") for p in chosen]
    cut = []
    for number in range(first_look.BOARDS):
        board = places(number)
        picture = whole.whole_board(board, np.random.default_rng([SEED, number, 31]))
        cut += read_board(picture, layout, board[0].serial, order="RGB").pictures()
    options = {"store": store, "memory": "25MB", "profile": None, "threads": 1, "allow_kinds": first_look.ALLOWED}
    with Inspector(first_look.BOARD, **options) as line:
        single, whole_ = ({_key(r): r for r in line.stream(pictures)} for pictures in (alone, cut))
    assert single.keys() == whole_.keys()
    assert len(single) == len(chosen)
    differing = [key for key, result in single.items() if whole_[key].verdict is not result.verdict]
    # A warp softens a picture a little, so a part on which an expert is in doubt may tip over.
    assert len(differing) <= len(single) // 25, differing


def _key(result):
    return result.request.serial, result.request.refdes
