"""Whole boards: decided as their pictures one by one are, REVIEW if not located; what a person sees of their parts."""

import io
import re
import threading
import weakref
from dataclasses import replace

import cv2
import numpy as np
import pytest
from drawn_boards import PARTS, Pose, truth
from killed import KILLED, run_line
from PIL import Image
from serve_rows import decide, ng, the
from serving import activated, embedded_database, put
from stations import deciding, grey, quick_opener
from tiny_line import TINY
from waiting import eventually
from whole_boards import BOARD, POSE, WHOLE, RedDevice, found, layout_of, picture_of, places, png, whole_of, with_call

from coe.board.parts_list import BoardPart, Side
from coe.core import Verdict
from coe.errors import ConfigError
from coe.helpers.strict_model import of_json
from coe.learn.golden_reference import learn
from coe.pictures.picture_file import PictureFile
from coe.placement import crop, outline
from coe.serve.component_pictures import CropPlace, Cutter
from coe.serve.database import board_rows
from coe.serve.database.tables import NewCall
from coe.serve.enums import BoardState, CallReason, EventKind, FaultKind
from coe.serve.failpoints import Failpoint
from coe.serve.recipe_content import RecipeContent, WholeBoard
from coe.serve.request import BoardRequest
from coe.serve.service_config import LineSettings
from coe.serve.worker import locating
from coe.serve.worker.locating import locate
from coe.store.references import References
from coe.store.store import Store

PANEL = {
    "panel": {"array": {"rows": 1, "columns": 2, "pitch": [9, 0]}},
    "bad_mark": {"at": [4, 13], "diameter": 1.2, "look": "bright", "level": 150},
}
ON_PANEL = (PARTS[0], BoardPart("P2", 5, 9, 90, Side.TOP, "C"))
STRANGE = whole_of([replace(PARTS[0], component="A2")], components={"A2": {"size": [2, 1]}})

database = embedded_database(busy_s=2.0)


@pytest.fixture
def shop(shop):
    """A shop whose recipe cuts whole boards, and whose device sees red alone."""
    shop.device, shop.recipe = RedDevice(), activated(shop.database, TINY, whole=WHOLE)
    return shop


def taken(shop, pixels=BOARD, bad_marks=(), **more):
    return shop.accept({"top": png(pixels)}, {"whole": "top", "bad_marks": bad_marks}, **more)


def decided(shop, *boards):
    shop.decide(*boards)
    return [shop.calls(board) for board in boards]


def words(found):
    return [(call.refdes, call.component, call.verdict, call.reason, call.expert, call.label) for call in found]


def test_a_whole_board_is_decided_as_the_pictures_of_its_components_are(shop):
    layout = layout_of(WHOLE)
    fit = truth(layout, POSE)[0]
    crops = {site.name: crop(BOARD, site, fit) for site in layout.sites}
    shown = {site.name: {"refdes": site.name, "component": site.component} for site in layout.sites}
    pictures = {name: png(pixels) for name, pixels in crops.items() if pixels is not None}
    whole, single = taken(shop), shop.accept(pictures, {"views": shown}, key="k2")
    of_whole, of_single = decided(shop, whole, single)
    assert words(of_whole) == words(of_single)
    assert [call.refdes for call in of_whole] == ["P3", "P4"]
    found = shop.state(whole)
    assert (found.verdict, found.components, found.attempts) == (Verdict.NG, 4, 1)
    true = outline(layout.sites[2], fit, BOARD.shape[1], BOARD.shape[0]).corners
    np.testing.assert_allclose(np.array(of_whole[0].place["polygon"]), true, atol=0.5)
    good = board_rows.unpack(shop.database.read(board_rows.findings_of, whole.id))
    assert [(one.refdes, len(one.place["polygon"])) for one in good] == [("P1", 4), ("P2", 4)]


def test_a_board_that_is_not_registered_is_review_with_the_reason(shop):
    board = taken(shop, np.full((400, 480, 3), 200, np.uint8))
    (found,) = decided(shop, board)
    assert {(call.verdict, call.reason) for call in found} == {(Verdict.REVIEW, CallReason.NOT_REGISTERED)}
    assert [call.refdes for call in found] == ["P1", "P2", "P3", "P4"]
    assert all(call.view_id is not None and call.place == {"polygon": []} for call in found)
    assert shop.state(board).reason.startswith("not registered: no fiducial was found")


def test_a_crop_partly_outside_is_review_and_the_others_are_inspected(shop):
    whole = whole_of((*PARTS, BoardPart("P5", 0.1, 8, 0, Side.TOP, "A")))
    layout = layout_of(whole)
    picture = picture_of(layout, [site.name for site in layout.sites])[:, 40:]
    board = taken(shop, picture, recipe=activated(shop.database, TINY, whole=whole))
    ((call,),) = decided(shop, board)
    assert (call.refdes, call.verdict, call.reason) == ("P5", Verdict.REVIEW, CallReason.OUTSIDE)
    assert "pixels outside of the picture" in call.detail
    assert shop.state(board).components == 5


def test_units_that_are_marked_or_named_as_bad_are_one_call_each_and_never_ok(shop):
    whole = whole_of(ON_PANEL, **PANEL)
    panel = layout_of(whole)
    picture = picture_of(panel, [site.name for site in panel.sites], Pose())
    marked = picture.copy()
    mark, fit = panel.marks["r1c2"], truth(panel, Pose())[0]
    x, y = np.round(fit.pixels(np.array([[mark.x_mm, mark.y_mm]]))[0]).astype(int)
    cv2.circle(marked, (int(x), int(y)), 12, (240, 240, 240), -1)
    shop.recipe = activated(shop.database, TINY, whole=whole)
    seen, told = taken(shop, marked), taken(shop, picture, ["r1c1"], key="k2")
    (of_seen,), (of_told,) = decided(shop, seen, told)
    assert (of_seen.refdes, of_seen.verdict, of_seen.reason) == ("r1c2", Verdict.REVIEW, CallReason.SKIPPED)
    assert "'r1c2'" in of_seen.detail
    assert of_told.refdes == "r1c1"
    assert "'r1c1'" in of_told.detail
    good = board_rows.unpack(shop.database.read(board_rows.findings_of, seen.id))
    assert [one.refdes for one in good] == ["r1c1/P1", "r1c1/P2"]


def test_a_picture_that_is_torn_lost_or_changed_is_review_and_a_lost_one_is_a_fault(shop):
    contents = (png(BOARD)[:2000], png(BOARD), png(BOARD) + b"one byte more")
    boards = [shop.accept({"top": content}, {"whole": "top"}, key=f"k{n}") for n, content in enumerate(contents)]
    _, lost, changed = sorted(shop.config.pictures.glob("*/*"), key=lambda path: path.stat().st_size)
    lost.unlink()
    changed.write_bytes(png(BOARD))
    found = decided(shop, *boards)
    for of_board in found:
        assert [(call.verdict, call.reason) for call in of_board] == [(Verdict.REVIEW, CallReason.FAILED)] * 4
    assert found[2][0].detail != found[0][0].detail
    assert [(fault.kind, fault.board_id) for fault in shop.faults()] == [(FaultKind.IMAGE_LOST, boards[1].id)]


def test_a_picture_on_which_the_code_fails_is_review_and_the_line_goes_on(shop, monkeypatch):
    def fail(*arguments, **options):
        raise MemoryError("24 megapixels")

    monkeypatch.setattr("coe.serve.worker.locating.read_board", fail)
    (found,) = decided(shop, taken(shop))
    assert [(call.refdes, call.reason) for call in found] == [(f"P{n}", CallReason.FAILED) for n in range(1, 5)]
    assert found[0].detail == "MemoryError while the board was located: 24 megapixels"


def test_other_boards_are_decided_when_they_are_due_while_a_picture_is_looked_at(shop, monkeypatch):
    looks, go_on = threading.Event(), threading.Event()

    def slowly(*arguments):
        looks.set()
        assert go_on.wait(20)
        return locate(*arguments)

    monkeypatch.setattr(locating, "locate", slowly)
    slow, due = taken(shop), taken(shop, key="k2", within_s=0.01)
    with shop.deciding():
        eventually(lambda: looks.is_set() and shop.is_decided(due))
        assert shop.state(slow).state is BoardState.ACCEPTED
        go_on.set()
        eventually(lambda: shop.is_decided(slow))
    assert [(call.reason, call.place) for call in shop.calls(due)] == [(CallReason.LATE, {"polygon": []})] * 4
    assert shop.verdict(slow) is Verdict.NG


def test_the_board_after_is_located_while_a_board_runs_and_pictures_are_let_go(shop, monkeypatch):
    pictures = []

    def noted(*arguments):
        found = locate(*arguments)
        pictures.append(weakref.ref(found.picture.rgb))
        return found

    monkeypatch.setattr(locating, "locate", noted)
    shop.device.gate.clear()
    first, second = taken(shop), taken(shop, key="k2")
    with shop.deciding(inbox=1):
        eventually(lambda: shop.state(second).state is BoardState.LOCATED)
        assert shop.state(first).state is BoardState.RUNNING
        shop.device.gate.set()
        eventually(lambda: shop.is_decided(second))
        eventually(lambda: [picture() for picture in pictures] == [None, None])
    assert words(shop.calls(first)) == words(shop.calls(second))


@pytest.mark.slow
def test_a_line_that_is_killed_while_a_board_is_located_decides_it_once(shop):
    board = taken(shop)
    for attempts, point in enumerate((Failpoint.LOCATING, Failpoint.LOCATED), 1):
        assert run_line(shop.config, shop.tiny, point) == KILLED
        assert shop.state(board).attempts == attempts
    assert shop.state(board).state is BoardState.LOCATED
    assert run_line(shop.config, shop.tiny) == 0
    assert [call.refdes for call in shop.calls(board)] == ["P3", "P4"]
    assert shop.kinds(board) == [EventKind.BOARD_ACCEPTED, EventKind.BOARD_STARTED, EventKind.BOARD_DECIDED]


def test_the_parts_of_the_layout_are_the_parts_list_of_the_line(shop):
    given, board = [], taken(shop)

    def open_line(boards):
        given.extend(boards)
        return quick_opener(shop.tiny, shop.device)(boards)

    with deciding(shop.config, shop.database, open_line):
        eventually(lambda: shop.is_decided(board))
    assert [list(board.parts) for board in given] == [list(layout_of(WHOLE).parts)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parts": "refdes,x_mm,y_mm,angle,side,component\nP1,a,5,0,top,A"}, "whole.parts:2: P1: x_mm 'a'"),
        ({"parts": "Ref,PosX,PosY,Rot,Side,Val\nP1,1,5,0,top,A"}, "coe-board parts"),
        ({"parts": ""}, "whole.parts: not a parts file"),
        ({"recipe": "recipe: r\nsid: top\n"}, "whole.recipe:2: "),
        ({"form": "x"}, "'form' is not a key"),
        (STRANGE, "'A2' is not a component of board 'tiny'"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_place(change, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        of_json({"rules": TINY, "whole": {**WHOLE, **change}}, RecipeContent).board("tiny")


def test_a_recipe_that_cannot_be_used_is_refused_when_it_is_posted(served):
    answer = served.engineer.post("/api/v1/recipes/tiny", json={"rules": TINY, "whole": WHOLE, "parts": {"P1": "A"}})
    assert (answer.status_code, "leave `parts` out" in answer.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    ("body", "whole", "sentence"),
    [
        ({"whole": "top", "views": {"top": {"refdes": "P1", "component": "A"}}}, WHOLE, "views: say either"),
        ({"whole": "tpo"}, WHOLE, "view 'tpo' was not submitted"),
        ({"whole": "top", "side": "bottom"}, WHOLE, "side: the board's view is of the bottom side"),
        ({"whole": "top", "bad_marks": ["r1c1"]}, WHOLE, "bad_marks: the picture shows no panel"),
        ({"whole": "top"}, None, "recipe 'tiny' does not say how whole boards are cut"),
        ({"views": {"top": {"refdes": "P9", "component": "A"}}}, WHOLE, "there is no 'P9'"),
        ({"views": {"top": {"refdes": "P1", "component": "A"}}, "serials": {"u": "S"}}, WHOLE, "serials: the picture"),
    ],
)
def test_a_request_that_does_not_fit_the_recipe_is_refused(body, whole, sentence):
    content = of_json({"rules": TINY, "whole": whole}, RecipeContent)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        of_json({"recipe": "tiny", **body}, BoardRequest).check(content, content.board("tiny"), {"top": "0" * 64})


def test_a_panel_is_handed_in_with_the_serials_of_its_units(served):
    activated(served.database, TINY, name="panel", whole=whole_of(ON_PANEL, **PANEL))
    put(served.feeder, "k1", "top", grey(90))
    body = {"recipe": "panel", "whole": "top", "panel": "P7", "serials": {"r1c1": "S1"}, "bad_marks": ["r1c2"]}
    wrong = served.feeder.post("/api/v1/boards/k1", json={**body, "serials": {"r1c3": "S1"}})
    assert (wrong.status_code, "serials: there is no unit 'r1c3'" in wrong.json()["detail"]) == (422, True)
    answer = served.feeder.post("/api/v1/boards/k1", json=body)
    assert answer.status_code == 202
    shown = served.feeder.get(answer.headers["location"]).json()
    assert (shown["state"], shown["components"], shown["serials"]) == ("accepted", 4, {"r1c1": "S1"})
    place = {"polygon": [[1, 2], [3, 2], [3, 4], [1, 4]]}
    call = NewCall("r1c1/P1", "A", Verdict.NG, CallReason.EXPERT, place=place)
    decide(served.database, "k1", call)
    assert served.feeder.get(answer.headers["location"]).json()["calls"][0]["place"] == place


def test_an_engineer_sees_every_crop_before_the_recipe_is_activated(served):
    staged = activated(served.database, TINY, name="new", whole=WHOLE)
    path = f"/api/v1/recipes/new/{staged.version}/overlay"
    answer = served.engineer.post(path, content=png(BOARD), params={"side": 300})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    drawn = np.asarray(Image.open(io.BytesIO(answer.content)))
    assert drawn.shape[1] == 300
    cyan = (drawn[..., 0] < 60) & (drawn[..., 1] > 150) & (drawn[..., 2] > 150)
    assert cyan.sum() > 100
    assert served.engineer.post(path, content=png(BOARD)[:2000]).status_code == 422
    assert served.engineer.post(path, content=b"no picture").status_code == 415
    assert served.engineer.post("/api/v1/recipes/tiny/1/overlay", content=png(BOARD)).status_code == 409
    assert served.operator.post(path, content=png(BOARD)).status_code == 403


@pytest.fixture
def board(tmp_path):
    return found(tmp_path / "board.png")


def pixels(answer):
    assert answer.status_code == 200, answer.text
    return np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"))


def test_a_crop_is_cut_again_from_its_place_as_the_experts_saw_it(served, board):
    at = places(board)
    assert sorted(at) == ["P1", "P2", "P3", "P4"]
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


@pytest.fixture
def golden(served, board, tmp_path):
    """P3 in two references of a store, each with another patch in its middle."""
    store = Store(tmp_path / "store")
    served.gate.config = served.gate.config.model_copy(update={"line": LineSettings(store=store.root)})
    pictures = {"A": board.crop("P3").copy(), "other": board.crop("P3").copy()}
    for (name, picture), level in zip(pictures.items(), (150, 200), strict=True):
        picture[12:15, 26:30] = level
        References(store).put(f"tiny/{name}", learn({"a": picture}).encoded("a test"))
    return pictures


@pytest.mark.parametrize(("name", "finding"), [("A", {}), ("other", {"reference": "tiny/other"})])
def test_the_reference_that_a_part_was_compared_with_stands_beside_its_call(served, board, golden, name, finding):
    with_call(served, board, "P3", "A", **finding)
    assert served.operator.post("/api/v1/calls/next").json()["golden"] is True
    picture, reference, difference = (
        pixels(served.operator.get(f"/api/v1/calls/1/{name}")) for name in ("picture", "reference", "difference")
    )
    around = CropPlace.of(places(board)["P3"]).around
    assert picture.shape == reference.shape == difference.shape
    np.testing.assert_array_equal(reference[around:-around, around:-around], golden[name])
    inner = difference[around:-around, around:-around]
    assert inner[12:15, 26:30].mean() > 60
    assert inner[20:].mean() < 12
    assert served.feeder.get("/api/v1/calls/1/difference").status_code == 403


def test_a_reference_that_is_gone_from_the_store_is_a_problem_with_a_sentence(served, board):
    with_call(served, board, "P1", "A")
    answer = served.operator.get("/api/v1/calls/1/reference")
    assert (answer.status_code, "no reference 'tiny/A'" in answer.json()["detail"]) == (404, True)


def test_a_part_whose_place_nobody_knows_has_no_crop_and_a_unit_that_was_skipped_has_one_of_its_own_size():
    assert [CropPlace.of(place) for place in (None, {}, {"polygon": []})] == [None] * 3
    place = the(CropPlace.of({"polygon": [[10, 20], [110, 20], [110, 70], [10, 70]]}))
    assert (place.width, place.height, place.around) == (100, 50, 30)
    assert CropPlace.of({"polygon": [[0, 0], [80_000, 0], [80_000, 2], [0, 2]]}).width == 4000


def test_a_view_that_shows_a_part_alone_says_how_large_it_is(served):
    put(served.feeder, "k1", "R1")
    body = {"recipe": "tiny", "views": {"R1": {"refdes": "R1", "component": "A"}}}
    assert served.feeder.post("/api/v1/boards/k1", json=body).status_code == 202
    decide(served.database, "k1", ng(view_id=1))
    call = served.operator.get("/api/v1/calls/1").json()
    assert call["picture"] == {"pixels": 1600, "around": 0, "in_view": False, "view_pixels": 1600, "middle": []}


def test_a_crop_of_a_12_bit_view_is_what_the_experts_saw(tmp_path):
    assert cv2.imwrite(str(tmp_path / "view.png"), np.full((60, 80), 2047, np.uint16))
    row = {"polygon": [[10, 10], [50, 10], [50, 40], [10, 40]], "size": [40, 30], "bits": 12}
    place = the(CropPlace.of(row))
    assert (Cutter().cut(PictureFile(tmp_path / "view.png"), place, 10**6) == 127).all()
    unsaid = the(CropPlace.of({**row, "bits": None}))  # shown, although no expert judged it
    assert (Cutter().cut(PictureFile(tmp_path / "view.png"), unsaid, 10**6) == 255).all()


def test_a_view_that_is_black_at_its_end_is_shown_as_it_was_judged(served):
    """The first rows of a BMP lie at its end; the line judges a view by its SHA-256, and does not take it for torn."""
    dark_above = np.full((60, 80, 3), 90, np.uint8)
    dark_above[:20] = 0
    put(served.feeder, "k1", "R1", cv2.imencode(".bmp", dark_above)[1].tobytes())
    assert (pixels(served.operator.get("/api/v1/views/1/picture")) == dark_above).all()


def test_a_recipe_counts_the_components_of_its_layout_and_says_how_many_bits_count():
    content = RecipeContent(rules=TINY, whole=WholeBoard.model_validate(WHOLE), terminations={"A": 2})
    assert content.opportunities("tiny") == 4 + 2 * 2
    assert RecipeContent(rules=TINY).bits is None
    assert RecipeContent(rules=TINY.replace("board: tiny", "board: tiny\nbits: 12")).bits == 12
    assert RecipeContent(rules="no rules").bits is None
