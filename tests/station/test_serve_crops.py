"""What a person sees of a part of a whole board: its crop as the line saw it, the golden reference, the whole view."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image
from serve_rows import ng, the
from serving import put
from tiny_line import TINY
from whole_boards import BOARD, found, places, png, with_call

from coe.core import Verdict
from coe.learn.golden_reference import learn
from coe.pictures.picture_file import PictureFile
from coe.serve.clock import now_us
from coe.serve.component_pictures import CropPlace, Cutter
from coe.serve.database import board_rows
from coe.serve.database.board_rows import Decision
from coe.serve.recipe_content import RecipeContent
from coe.serve.service_config import LineSettings
from coe.store.references import References
from coe.store.store import Store


@pytest.fixture
def board(tmp_path):
    return found(tmp_path / "board.png")


def pixels(answer):
    assert answer.status_code == 200, answer.text
    return np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"))


def test_a_crop_is_cut_again_from_its_place_as_the_experts_saw_it(served, board):
    at = places(board)
    assert sorted(at) == ["P1", "P2", "P3", "P4"]
    assert board.picture is not None
    file = served.gate.config.data / "view.png"
    file.write_bytes(png(BOARD))
    for refdes, place in at.items():
        known = the(CropPlace.of(place))
        again = served.gate.cutter.cut(PictureFile(file), known, 10**6)
        apart = np.abs(again.astype(int) - board.crop(refdes)[..., ::-1])
        assert again.shape == board.crop(refdes).shape
        # The corners are written to a hundredth of a pixel, and a warp places pixels by 32 steps.
        assert (apart > 16).mean() < 0.01


def test_a_call_of_a_whole_board_is_shown_as_its_crop_with_what_lies_around(served, board):
    with_call(served, board, "P3", "A")
    call = served.operator.post("/api/v1/calls/next").json()
    size, crop = call["picture"], board.crop("P3")
    picture = pixels(served.operator.get("/api/v1/calls/1/picture"))
    around = size["around"]
    assert (size["in_view"], size["pixels"]) == (True, picture.shape[0] * picture.shape[1])
    assert picture.shape[:2] == tuple(length + 2 * around for length in crop.shape[:2])
    inner = picture[around:-around, around:-around]
    assert (np.abs(inner.astype(int) - crop) > 16).mean() < 0.01
    view = pixels(served.operator.get("/api/v1/calls/1/view"))
    yellow = (view[..., 0] > 200) & (view[..., 1] > 160) & (view[..., 2] < 90)
    rows, columns = np.nonzero(yellow)
    corners = np.array(places(board)["P3"]["polygon"])
    assert view.shape == BOARD.shape
    assert np.abs(corners.min(axis=0) - (columns.min(), rows.min())).max() < 4
    assert np.abs(corners.max(axis=0) - (columns.max(), rows.max())).max() < 4


def test_without_a_golden_reference_a_good_part_of_another_board_stands_beside_it(served, board):
    with_call(served, board, "P2", "B")
    assert served.operator.post("/api/v1/calls/next").json()["golden"] is False
    picture, good = (pixels(served.operator.get(f"/api/v1/calls/1/{name}")) for name in ("picture", "reference"))
    np.testing.assert_array_equal(picture, good)
    assert served.operator.get("/api/v1/calls/1/difference").status_code == 404


def test_a_golden_reference_stands_beside_a_call_with_the_aligned_difference(served, board, tmp_path):
    store = Store(tmp_path / "store")
    served.gate.config = served.gate.config.model_copy(update={"line": LineSettings(store=store.root)})
    golden = board.crop("P3").copy()
    golden[12:15, 26:30] = 150
    References(store).put("tiny/A", learn({"a": golden}).encoded("a test"))
    with_call(served, board, "P3", "A")
    assert served.operator.post("/api/v1/calls/next").json()["golden"] is True
    picture, reference, difference = (
        pixels(served.operator.get(f"/api/v1/calls/1/{name}")) for name in ("picture", "reference", "difference")
    )
    around = CropPlace.of(places(board)["P3"]).around
    assert picture.shape == reference.shape == difference.shape
    np.testing.assert_array_equal(reference[around:-around, around:-around], golden)
    inner = difference[around:-around, around:-around]
    assert inner[12:15, 26:30].mean() > 60
    assert inner[20:].mean() < 12
    assert served.feeder.get("/api/v1/calls/1/difference").status_code == 403


def test_of_several_references_that_stands_beside_a_call_which_it_was_compared_with(served, board, tmp_path):
    store = Store(tmp_path / "store")
    served.gate.config = served.gate.config.model_copy(update={"line": LineSettings(store=store.root)})
    for name, level in (("A", 50), ("other", 150)):
        golden = board.crop("P3").copy()
        golden[12:15, 26:30] = level
        References(store).put(f"tiny/{name}", learn({"a": golden}).encoded("a test"))
    with_call(served, board, "P3", "A", reference="tiny/other")
    assert served.operator.post("/api/v1/calls/next").json()["golden"] is True
    reference = pixels(served.operator.get("/api/v1/calls/1/reference"))
    around = CropPlace.of(places(board)["P3"]).around
    np.testing.assert_array_equal(reference[around:-around, around:-around], golden)


def test_a_reference_that_is_gone_from_the_store_is_a_problem_with_a_sentence(served, board):
    with_call(served, board, "P1", "A")
    answer = served.operator.get("/api/v1/calls/1/reference")
    assert (answer.status_code, "no reference 'tiny/A'" in answer.json()["detail"]) == (404, True)


@pytest.mark.parametrize("place", [None, {}, {"polygon": []}])
def test_a_part_whose_place_nobody_knows_is_shown_with_the_whole_view(place):
    assert CropPlace.of(place) is None


def test_a_unit_that_was_skipped_is_cut_in_its_own_size():
    square = {"polygon": [[10, 20], [110, 20], [110, 70], [10, 70]]}
    place = the(CropPlace.of(square))
    assert (place.width, place.height, place.around) == (100, 50, 30)
    assert CropPlace.of({"polygon": [[0, 0], [80_000, 0], [80_000, 2], [0, 2]]}).width == 4000


def test_a_view_that_shows_a_part_alone_says_how_large_it_is(served):
    put(served.feeder, "k1", "R1")
    body = {"recipe": "tiny", "views": {"R1": {"refdes": "R1", "component": "A"}}}
    assert served.feeder.post("/api/v1/boards/k1", json=body).status_code == 202
    with served.database.writing() as connection:
        handed_in = the(board_rows.of_key(connection, "k1"))
        board_rows.decide(connection, Decision(handed_in, Verdict.NG, now_us(), False, [ng(view_id=1)], []))
    call = served.operator.get("/api/v1/calls/1").json()
    assert call["picture"] == {"pixels": 1600, "around": 0, "in_view": False, "view_pixels": 1600, "middle": []}


def test_a_crop_of_a_12_bit_view_is_what_the_experts_saw(tmp_path):
    assert cv2.imwrite(str(tmp_path / "view.png"), np.full((60, 80), 2047, np.uint16))
    row = {"polygon": [[10, 10], [50, 10], [50, 40], [10, 40]], "size": [40, 30], "bits": 12}
    place = the(CropPlace.of(row))
    assert (Cutter().cut(PictureFile(tmp_path / "view.png"), place, 10**6) == 127).all()
    unsaid = the(CropPlace.of({**row, "bits": None}))
    assert (
        Cutter().cut(PictureFile(tmp_path / "view.png"), unsaid, 10**6) == 255
    ).all()  # shown, although no expert judged it


def test_a_view_that_is_black_at_its_end_is_shown_as_it_was_judged(served):
    """The first rows of a BMP lie at its end; the line judges a view by its SHA-256, and does not take it for torn."""
    dark_above = np.full((60, 80, 3), 90, np.uint8)
    dark_above[:20] = 0
    put(served.feeder, "k1", "R1", cv2.imencode(".bmp", dark_above)[1].tobytes())
    assert (pixels(served.operator.get("/api/v1/views/1/picture")) == dark_above).all()


def test_a_recipe_says_how_many_bits_count():
    assert RecipeContent(rules=TINY).bits is None
    assert RecipeContent(rules=TINY.replace("board: tiny", "board: tiny\nbits: 12")).bits == 12
    assert RecipeContent(rules="no rules").bits is None
