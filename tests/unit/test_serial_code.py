"""The serial of a board from a code on it: read, or the board is to review; never a wrong one."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from drawn_boards import PARTS, Pose, draw, layout, truth
from seen_codes import QUIET, modules

from coe.board.parts_list import BoardPart, Side
from coe.core import Verdict
from coe.errors import ConfigError, RulesError
from coe.placement import lay_out, parse_recipe, read_board
from coe.placement.panel_split import pattern_of
from coe.placement.run_source import WholeBoards
from coe.serve.worker.locating import locate
from coe.serve.worker.verdicts import Items, Whole

AT = (10.0, 8.0)
SERIAL = {"at": AT, "size": [4.5, 4.5], "formats": ["DataMatrix", "QRCode"], "allowed": ["SN####"]}
ANY = {"at": AT, "size": [4.5, 4.5]}
ONE = [PARTS[0]]
PIXELS = 3
UPRIGHT = Pose()


def printed(drawn, texts, pose=UPRIGHT, format="DataMatrix"):
    picture = draw(drawn, pose)
    exact, _, _ = truth(drawn, pose)
    for unit, text in texts.items():
        site = drawn.codes[unit]
        white = np.pad(modules(format, text), QUIET[format])
        code = np.kron(255 * (1 - white), np.ones((PIXELS, PIXELS), np.uint8)).astype(np.uint8)
        x, y = exact.pixels(np.array([[site.at.x_mm, site.at.y_mm]]))[0]
        turned = cv2.getRotationMatrix2D((code.shape[1] / 2, code.shape[0] / 2), -pose.turn_deg, 1)
        turned[:, 2] += (x - code.shape[1] / 2, y - code.shape[0] / 2)
        size = picture.shape[1::-1]
        mask = cv2.warpAffine(np.full_like(code, 255), turned, size)
        seen = cv2.warpAffine(code, turned, size, flags=cv2.INTER_LINEAR)
        picture = np.where(mask[..., None] > 127, seen[..., None], picture).astype(np.uint8)
    return picture


@pytest.mark.parametrize("pose", [Pose(), Pose(3.5, 1.01, 6, -5)])
@pytest.mark.parametrize("format", ["DataMatrix", "QRCode"])
def test_the_code_says_the_serial(pose, format):
    drawn = layout(ONE, serial=SERIAL)
    board = read_board(printed(drawn, {"": "SN0042"}, pose, format), drawn, "photo7")
    assert [picture.serial for picture in board.pictures()] == ["SN0042"]
    assert list(board.results()) == []


@pytest.mark.parametrize(("text", "stated"), [("XX0042", SERIAL), ("SN004", SERIAL), (None, SERIAL), ("../SN1", ANY)])
def test_without_a_code_that_is_allowed_the_board_is_to_review_under_the_name_of_its_picture(text, stated):
    """A code that would lead a file elsewhere is never allowed."""
    drawn = layout(ONE, serial=stated)
    board = read_board(printed(drawn, {} if text is None else {"": text}), drawn, "photo7")
    assert list(board.pictures()) == []
    (result,) = board.results()
    assert (result.verdict, result.request.serial) == (Verdict.REVIEW, "photo7")
    assert result.findings[0].label == "no serial"
    assert (text or "no code") in result.findings[0].doubt


def test_two_codes_that_differ_are_no_serial_and_one_that_the_caller_gives_stays():
    drawn = layout(ONE, serial={**SERIAL, "size": [10, 5], "at": [10, 8]})
    left, right = layout(ONE, serial={**SERIAL, "at": [7.5, 8]}), layout(ONE, serial={**SERIAL, "at": [12.5, 8]})
    first, second = printed(left, {"": "SN0001"}), printed(right, {"": "SN0002"})
    half = int(truth(drawn, Pose())[0].pixels(np.array([AT]))[0, 0])
    (result,) = read_board(np.hstack([first[:, :half], second[:, half:]]), drawn, "photo7").results()
    assert result.verdict is Verdict.REVIEW
    assert ("SN0001" in result.findings[0].doubt, "SN0002" in result.findings[0].doubt) == (True, True)
    drawn = layout(ONE, serial=SERIAL)
    board = read_board(draw(drawn), drawn, "photo7", serials={"": "SN9999"})
    assert [picture.serial for picture in board.pictures()] == ["SN9999"]


PANEL = {"panel": {"array": {"rows": 1, "columns": 2, "pitch": [9, 0]}}}
ON_PANEL = (type(PARTS[0])("P1", 3.5, 3.5, 0, Side.TOP, component="A"),)
OF_UNIT = {**SERIAL, "at": [5, 9], "size": [4, 4], "each": "unit"}


@pytest.mark.parametrize(
    ("stated", "texts", "serials", "unread"),
    [
        (OF_UNIT, {"r1c1": "SN0001", "r1c2": "SN0002"}, ["SN0001", "SN0002"], set()),
        (OF_UNIT, {"r1c1": "SN0001"}, ["SN0001"], {"panel-r1c2"}),
        # A serial that two units show is that of neither.
        (OF_UNIT, {"r1c1": "SN0001", "r1c2": "SN0001"}, [], {"panel-r1c1", "panel-r1c2"}),
        # One code of a panel names all its units.
        ({**SERIAL, "at": [9.5, 12]}, {"": "SN0007"}, ["SN0007-r1c1", "SN0007-r1c2"], set()),
    ],
)
def test_each_unit_of_a_panel_has_its_code(stated, texts, serials, unread):
    drawn = layout(ON_PANEL, **PANEL, serial=stated)
    board = read_board(printed(drawn, texts), drawn, "panel")
    assert [picture.serial for picture in board.pictures()] == serials
    assert {result.request.serial for result in board.results()} == unread


def test_pictures_of_a_folder_are_boards_by_their_codes(tmp_path):
    drawn = layout(ONE, serial=SERIAL)
    for name, text in (("a", "SN0001"), ("b", "SN0002")):
        cv2.imwrite(str(tmp_path / f"{name}.png"), printed(drawn, {"": text})[..., ::-1])
    cv2.imwrite(str(tmp_path / "c.png"), draw(drawn)[..., ::-1])
    boards = WholeBoards(drawn, tmp_path)
    assert [(item.serial, item.name) for item in boards.items] == [
        ("SN0001", f"a.png/{PARTS[0].refdes}"),
        ("SN0002", f"b.png/{PARTS[0].refdes}"),
        ("c", f"c.png/{PARTS[0].refdes}"),
    ]
    cv2.imwrite(str(tmp_path / "d.png"), printed(drawn, {"": "SN0002"})[..., ::-1])
    with pytest.raises(ConfigError) as refusal:
        WholeBoards(drawn, tmp_path)
    assert all(word in str(refusal.value) for word in ("SN0002", "b.png", "d.png"))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("formats", ["Datamatrx"], "DataMatrix"),
        ("formats", [], "format"),
        ("allowed", [], "allowed"),
        ("allowed", ["A\\"], "pattern"),
        ("each", "unit", "panel"),
        ("at", [90, 8], "serial"),
    ],
)
def test_what_makes_no_sense_is_refused(key, value, says):
    with pytest.raises((RulesError, ConfigError), match=says):
        layout(ONE, serial={**SERIAL, key: value})


@pytest.mark.parametrize(("handed_in", "agrees"), [("SN0042", True), ("SN0043", False)])
def test_the_station_reviews_a_board_whose_code_is_not_the_serial_that_it_came_with(tmp_path, handed_in, agrees):
    drawn, path = layout(ONE, serial=SERIAL), tmp_path / "view.png"
    cv2.imwrite(str(path), printed(drawn, {"": "SN0042"})[..., ::-1])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    cut = SimpleNamespace(layout=drawn)
    items = locate(Whole(1, path, cut, [], digest, None, {"": handed_in}), Items([], [])).items
    assert [item.component for item in items.seen] == [ONE[0].component]
    assert (items.reason == "") is agrees
    assert agrees or ("SN0042" in items.reason and "SN0043" in items.reason)


PARTS_PANEL = (("R1", 3, 4, 0), ("R2", 6, 4, 90), ("U1", 5, 8, 180))
SHIFTS = ((0, 0), (20, 0), (0, 15), (20, 15))
FRAME = [BoardPart("FID1", -3, -3, 0, Side.TOP, line=901), BoardPart("FID2", 40, -3, 0, Side.TOP, line=902)]


def panel(name):
    """Four boards whose parts have such names, in the order of the names."""
    places = [
        BoardPart(name.format(n=n, orig=refdes), x + dx, y + dy, angle, Side.TOP, refdes[0])
        for n, (dx, dy) in enumerate(SHIFTS)
        for refdes, x, y, angle in PARTS_PANEL
    ]
    ordered = sorted(places, key=lambda place: place.refdes)
    return [
        BoardPart(p.refdes, p.x_mm, p.y_mm, p.rotation_deg, p.side, p.component, line)
        for line, p in enumerate(ordered, 2)
    ]


def layout_panel(places, refdes):
    recipe = f"""
recipe: p
side: top
um_per_pixel: 20
outline: {{x: [-5, 45], y: [-5, 35]}}
fiducials: {{diameter: 1, at: {{FID1: [-3, -3], FID2: [40, -3]}}}}
components: {{R: {{size: [1, 1]}}, U: {{size: [2, 2]}}}}
panel: {{refdes: "{refdes}"}}
"""
    return lay_out(parse_recipe(Path("p.yaml"), recipe.encode()), places)


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("Board_{n}-{orig}", ["Board_0", "Board_1", "Board_2", "Board_3"]),
        ("{n}_{orig}", ["0", "1", "2", "3"]),
        ("{orig}", ["r1c1", "r2c1", "r1c2", "r2c2"]),
    ],
)
def test_a_panel_is_recognised_and_divided(name, units):
    places = [*FRAME, *panel(name)]
    assert pattern_of(places) == name
    drawn = layout_panel(places, name)
    assert (list(drawn.units), [part.refdes for part in drawn.parts]) == (units, ["R1", "R2", "U1"])
    at = {site.name: (site.at.x_mm, site.at.y_mm) for site in drawn.sites}
    first = {"Board_0": (0, 0), "0": (0, 0), "r1c1": (0, 0)}[units[0]]
    assert at[f"{units[0]}/U1"] == (5 + first[0], 8 + first[1])
    assert len(set(at.values())) == 12


def test_a_single_board_is_no_panel_and_boards_that_differ_are_refused():
    assert pattern_of([BoardPart(refdes, x, y, 0, Side.TOP) for refdes, x, y, _ in PARTS_PANEL]) is None
    assert pattern_of([BoardPart(f"LED_{n}_R1", n, 0, 0, Side.TOP) for n in (1,)]) is None
    two = [BoardPart(refdes, x + dx, y, angle, Side.TOP) for dx in (0, 20) for refdes, x, y, angle in PARTS_PANEL]
    assert pattern_of(two) == "{orig}"
    with pytest.raises(ConfigError, match=r"Board_3.* differ in"):
        layout_panel([place for place in panel("Board_{n}-{orig}") if place.refdes != "Board_3-U1"], "Board_{n}-{orig}")
    with pytest.raises(ConfigError, match="FID1, FID2 are on no board"):
        layout_panel([*(replace(one, component="R") for one in FRAME), *panel("Board_{n}-{orig}")], "Board_{n}-{orig}")
    turned = [
        p if p.x_mm < 20 or p.refdes != "R1" else BoardPart("R1", 29, 7, 180, p.side, "R", p.line)
        for p in panel("{orig}")
    ]
    with pytest.raises(ConfigError, match="differs in place or angle"):
        layout_panel(turned, "{orig}")
