"""`coe-board new` from a placement file: files that load, TODO where a person decides, and nothing is replaced."""

from dataclasses import replace
from math import dist
from pathlib import Path

import cv2
import numpy as np
import pytest
from placed import read_file
from tables import with_slow_rows

from apps.demo import own_board
from coe.board import rules
from coe.board.parts_list import Side, read_places
from coe.bring.board import first_board, found_camera
from coe.bring.board.board_outline import drawn_sizes, read_outline
from coe.bring.board.draft_recipe import first_draft, plan
from coe.bring.board.found_camera import (
    FoundBoard,
    MarkMatch,
    board_at,
    constellations,
    drawing_of,
    find_board,
    map_through,
)
from coe.bring.board.pose_search import BoardDrawing, Pose
from coe.bring.parts.answers import Answers
from coe.bring.parts.answers import read as read_answers
from coe.bring.parts.converting import convert
from coe.cli import board_command
from coe.errors import ConfigError
from coe.pictures.image_source import ImageSource
from coe.placement import lay_out, locate, parse_recipe, read_recipe
from coe.placement.fit import Fit

ROWS = """\
Ref,Val,Package,PosX,PosY,Rot,Side
R1,10k,R_0402_1005Metric,5,5,0,top
R2,10k,R_0402_1005Metric,7,5,90,top
C1,100n,C_0603_1608Metric,9,5,90,top
U1,LM358,SOIC-8_3.9x4.9mm_P1.27mm,15,8,0,top
Q9,BC847,SOT-23,9,9,0,bottom
FID1,Fiducial,Fiducial_1mm_Mask2mm,2,2,0,top
FID2,Fiducial,Fiducial_1mm_Mask2mm,28,2,0,top
FID3,Fiducial,Fiducial_1mm_Mask2mm,2,18,0,top
H1,MountingHole,MountingHole_3.2mm_M3,27,17,0,top
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pnp.csv").write_text(ROWS, encoding="utf-8")
    return tmp_path


def run(call, name, placements, *more, unit=("--units", "mm")):
    return call("new", name, "--placements", placements, *unit, "--yes", *more, command=board_command)


def new(call, *more):
    return run(call, "line7", "pnp.csv", *more).status


def made(folder, name="line7"):
    return lay_out(read_recipe(folder / name / "recipe.yaml"), read_places(folder / name / "parts.csv"))


def left_to_do(folder):
    """Return the keys in a recipe that are left to a person."""
    lines = (folder / "recipe.yaml").read_text(encoding="utf-8").splitlines()
    return [line.split(":")[0].strip() for line in lines if "TODO" in line]


def as_it_reads(path):
    return convert(path, None, Answers(unit="mm"))


def test_what_it_writes_can_be_read_and_is_never_replaced(call, folder):
    assert new(call) == 0
    board, layout = rules.load("line7"), made(folder)
    recipe = layout.recipe
    layout.check(board.components, board.board)
    counts = {name: component.count for name, component in board.components.items()}
    assert counts == {"R0402-10k": 2, "C0603-100n": 1, "SOIC-8-LM358": 1}
    assert recipe.components["SOIC-8-LM358"].size == (6.1, 4.9)
    assert (list(recipe.fiducials.at), recipe.fiducials.diameter) == (["FID1", "FID2", "FID3"], 1.0)
    assert [site.refdes for site in layout.sites] == ["R1", "R2", "C1", "U1"]
    (written := folder / "line7" / "recipe.yaml").write_text("mine", encoding="utf-8")
    (folder / "routing_rules" / "line7.yaml").unlink()
    assert new(call) == 2
    assert written.read_text(encoding="utf-8") == "mine"
    assert not (folder / "routing_rules" / "line7.yaml").exists()


@pytest.mark.parametrize("bom", ["bom.csv", "bill/pnp.csv"])
def test_what_is_not_fitted_is_no_part_of_the_board_and_named(call, folder, bom):
    (folder / "pnp.csv").write_text(ROWS.replace("R1,10k", "R1,DNP").replace("R2,10k", "R2,NC"), encoding="utf-8")
    assert new(call) == 2
    (folder / bom).parent.mkdir(exist_ok=True)
    (folder / bom).write_text("Designator,Value,DNP\nR1,10k,\nR2,10k,x\n", encoding="utf-8")
    said = run(call, "line7", "pnp.csv", "--bom", bom)
    assert (said.status, "pnp.csv: R1" in said.err, f"{Path(bom).name}: R2" in said.err) == (0, True, True)
    assert {*rules.load("line7").components} == {"C0603-100n", "SOIC-8-LM358"}
    assert "R1, R2" in (folder / "line7" / "parts.csv").read_text(encoding="utf-8").splitlines()[1]


def test_a_package_without_a_size_is_left_to_a_person_and_then_known(call, folder):
    with open(folder / "pnp.csv", "a", encoding="utf-8") as file:
        file.write("J1,Conn,XH_4A,20,12,0,top\n")
    assert new(call, "--to", "first") == 0
    assert "TODO: the size of XH_4A" in (folder / "first" / "line7" / "recipe.yaml").read_text(encoding="utf-8")
    (folder / "package_sizes.yaml").write_text("sizes:\n  - {package: XH_4*, size: [2.6, 10.2]}\n")
    assert new(call) == 0
    assert read_recipe(folder / "line7" / "recipe.yaml").components["XH4A-Conn"].size == (2.6, 10.2)


def test_a_name_that_is_none_and_a_board_without_marks_are_refused(call, folder):
    assert run(call, "../x", "pnp.csv").status == 2
    (folder / "pnp.csv").write_text(ROWS.replace("FID2", "R7").replace("Fiducial_1mm_Mask2mm,28", "R_0402,28"))
    assert new(call) == 0  # two are left
    (folder / "pnp.csv").write_text("\n".join(ROWS.splitlines()[:5]) + "\n")
    assert new(call, "--to", "other") == 2


class Brought:
    """A board as somebody brings it: its files, and the maps from millimetres to pixels of its photographs."""

    def __init__(self, folder):
        self.at, self.maps = folder, own_board.build(folder)
        self.options = ("--bom", folder / "bom.csv", "--images", folder / "boards")

    def picture(self, number=1):
        return ImageSource.of(self.at / "boards" / f"SN{number}.png", None, None).decode()

    def apart_px(self, fit, at_mm, number=1):
        """Return how far off a fit is at most, in pixels."""
        return float(np.hypot(*(fit.pixels(at_mm) - Fit(self.maps[number - 1]).pixels(at_mm)).T).max())


def corners_of(layout):
    return np.array([(corner.x_mm, corner.y_mm) for site in layout.sites for corner in site.corners])


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """A board of 38 parts as somebody brings it; the photographs are turned by 90 degrees, and 1 % aslant."""
    return Brought(tmp_path_factory.mktemp("brought"))


@pytest.mark.slow
def test_a_board_is_found_in_photographs_turned_and_aslant(call, brought, folder):
    at = brought.at
    said = run(call, "own", at / "pnp.csv", *brought.options, "--good")
    assert said.status == 0
    layout = made(folder, "own")
    (folder / "own" / "overlay-SN1.png").unlink()
    export = ("parts", at / "pnp.csv", *brought.options, "--yes", "--to")
    again = call(*export, "own", command=board_command)
    assert (again.status, "overlay-SN1.png: registered" in " ".join(again.out.split())) == (0, True)
    assert (folder / "own" / "overlay-SN1.png").read_bytes().startswith(b"\x89PNG")
    assert call(*export, "other", "--units", "mm", command=board_command).status == 2  # no recipe lies there
    rows = (at / "pnp.csv").read_text().splitlines()
    (folder / "more.csv").write_text("\n".join([*rows, rows[1].replace("R1", "R99").replace("0402", "1812")]) + "\n")
    again = call(*export[:1], "more.csv", *export[2:], "own", command=board_command)
    assert (again.status, "not drawn" in again.err) == (0, True), again.err
    recipe = layout.recipe
    assert (recipe.camera.turn, recipe.fiducials.look) == (pytest.approx(90, abs=1), "bright")
    assert recipe.um_per_pixel == pytest.approx(41.2, rel=1e-3)
    assert recipe.camera.keystone == (pytest.approx(0.01, abs=1e-3), pytest.approx(-0.006, abs=1e-3))
    assert (len(layout.sites), "R12" in {site.refdes for site in layout.sites}) == (38, False)
    for number in range(1, len(brought.maps) + 1):
        fit = locate(brought.picture(number), layout).fit
        assert brought.apart_px(fit, corners_of(layout), number) * recipe.um_per_pixel < 40
        assert (folder / "own" / f"overlay-SN{number}.png").stat().st_size > 10_000
    assert left_to_do(folder / "own") == ["SW_SPST_B3U-1000P-reset"]
    commands = [" ".join(line.split()[:2]) for line in said.out.splitlines() if line.startswith("  coe-")]
    assert commands == [*(f"coe-experts {word}" for word in ("crop", "reference", "train")), "coe-inspect --board"]


@pytest.mark.slow
def test_a_part_that_no_picture_shows_is_left_to_a_person_or_out(call, brought, folder):
    (folder / "package_sizes.yaml").write_text(
        "sizes: [{package: SW_SPST_B3U*, size: [3.6, 2.6]}, {package: SOT-23-5, size: [40, 40]}]\n", encoding="utf-8"
    )
    words = (brought.at / "pnp.csv", *brought.options)
    for name, more, is_asked in (("own", (), True), ("out", ("--leave-out", "U3"), False)):
        said = run(call, name, *words, *more)
        assert said.status == 0, said.err
        lines = [line for line in said.out.splitlines() if line.startswith("to decide")]
        assert [("not_inspected" in line, "U3" in line) for line in lines] == [(True, True)] * is_asked
        assert "U3" in made(folder, name).not_inspected
        assert read_answers(folder / name / "answers.yaml").not_inspected == ("U3",)
        board = rules.load(str(folder / "routing_rules" / f"{name}.yaml"))
        inspected = {site.component for site in made(folder, name).sites}
        assert (len(inspected), board.components.keys() == inspected) == (15, True)
    assert run(call, "no", *words, "--leave-out", "U33").status == 2


def drawn_of(brought, without="-"):
    """Return the layout, the plan and the drawing of a board, without marks of a letter."""
    read = as_it_reads(brought.at / "pnp.csv")
    read = replace(read, places=tuple(place for place in read.places if not place.refdes.startswith(without)))
    drawn = plan(read, Side.TOP)
    layout = lay_out(parse_recipe(Path("r.yaml"), first_draft("r", drawn).text().encode()), read.parts)
    return layout, drawn, drawing_of(layout, drawn.marks, outline_is_known=False)


@pytest.mark.slow
def test_three_fiducials_alone_tell_little_of_a_slant_and_the_parts_tell_the_rest(brought):
    _, drawn, drawing = drawn_of(brought, without="H")
    board = find_board(brought.picture(), drawing, drawn.marks)
    assert [mark.name for mark in board.match.marks] == ["FID1", "FID2", "FID3"]
    assert brought.apart_px(board.match.fit, np.concatenate(drawing.parts)) * 41.2 < 200


def test_marks_near_the_points_that_a_person_shows_make_the_place_exact(brought):
    layout, drawn, drawing = drawn_of(brought)
    shown = np.array([(109.0, -77.0), (157.0, -70.0)])
    off = np.array([(6, -5), (-4, 7)])
    rough = map_through(shown, Fit(brought.maps[0]).pixels(shown) + off, layout.middle)
    board = board_at(brought.picture(), drawing, drawn.marks, rough)
    assert brought.apart_px(board.match.fit, np.concatenate(drawing.parts)) * 41.2 < 40


def test_marks_alone_tell_how_a_board_lies_whose_parts_are_drawn_otherwise(brought):
    drawn = plan(as_it_reads(brought.at / "pnp.csv"), Side.TOP)
    left, bottom, right, top = drawn.x[0], drawn.y[0], drawn.x[1], drawn.y[1]
    chance = np.random.default_rng(4).uniform
    boxes = tuple(
        np.array([(x, y), (x + 5, y), (x + 5, y + 3), (x, y + 3)])
        for x, y in zip(chance(left, right, 30), chance(bottom, top, 30), strict=True)
    )
    drawing = BoardDrawing(boxes, (), (left, bottom, right, top), False)
    grey = cv2.cvtColor(brought.picture(), cv2.COLOR_RGB2GRAY)
    fiducials = [mark for mark in drawn.marks if mark.name.startswith("FID")]  # four holes lie alike turned round
    best = constellations(np.asarray(grey, np.uint8), drawing, fiducials)[0]
    assert brought.apart_px(best.fit(drawing), np.array([(left, bottom), (right, top)])) / best.scale < 1.5


@pytest.mark.slow
@pytest.mark.parametrize(("is_mirrored", "why"), [(False, "the board is not found"), (True, "its parts are mirrored")])
def test_a_picture_without_the_board_is_said_to_be_without_it(call, brought, folder, is_mirrored, why):
    noise = np.random.default_rng(3).integers(60, 90, (500, 700, 3), np.uint8)
    cv2.imwrite(str(folder / "desk.png"), brought.picture()[:, ::-1, ::-1] if is_mirrored else noise)
    said = run(call, "own", brought.at / "pnp.csv", "--images", "desk.png")
    assert said.status == 0
    assert f"desk.png: {why}" in said.words
    assert "TODO" in (folder / "own" / "recipe.yaml").read_text(encoding="utf-8").split("outline")[0]


@pytest.mark.parametrize(("shown", "status"), with_slow_rows([(3, 2), (2, 0), (4, 2)], fast=1))
def test_points_that_a_person_shows_do_not_hide_that_a_picture_is_mirrored(call, brought, folder, shown, status):
    mirrored = brought.picture()[:, ::-1, ::-1]
    cv2.imwrite(str(folder / "desk.png"), mirrored)
    places = {place.refdes: (place.x_mm, place.y_mm) for place in as_it_reads(brought.at / "pnp.csv").places}
    names = [min(places, key=lambda name: dist(places[name], to)) for to in ((0, 0), (999, -99), (0, -999), (999, 0))]
    pixels = Fit(brought.maps[0]).pixels(np.array([places[name] for name in names[:shown]]))
    points = [f"{name}={mirrored.shape[1] - 1 - x:.1f},{y:.1f}" for name, (x, y) in zip(names, pixels, strict=False)]
    marks = [word for point in points for word in ("--mark", point)]
    said = run(call, "own", brought.at / "pnp.csv", "--images", "desk.png", *marks)
    assert (said.status, "mirror" in said.words) == (status, True)


GERBER = """%TF.FileFunction,Profile,NP*%
%FSLAX46Y46*%
%MOMM*%
%ADD10C,0.1*%
G01*
D10*
X100000000Y-80000000D02*
X162000000Y-80000000D01*
X162000000Y-41000000D01*
G03*
X160000000Y-39000000I-2000000J0D01*
G01*
X100000000Y-39000000D01*
X100000000Y-80000000D01*
M02*
"""
KICAD = """(kicad_pcb (version 20221018)
  (setup (aux_axis_origin 100 80))
  (gr_line (start 100 80) (end 162 80) (stroke (width 0.1)) (layer "Edge.Cuts"))
  (gr_line (start 162 80) (end 162 39) (stroke (width 0.1)) (layer "Edge.Cuts"))
  (gr_line (start 0 0) (end 1 1) (layer "F.SilkS"))
)
"""


def test_the_edge_of_a_board_comes_from_a_gerber_file_or_from_kicad(tmp_path):
    (gerber := tmp_path / "b-Edge_Cuts.gm1").write_text(GERBER)
    (kicad := tmp_path / "b.kicad_pcb").write_text(KICAD)
    assert read_outline(gerber)[0] == (100.0, -80.0, 162.0, -39.0)
    assert read_outline(kicad)[0] == (0.0, 0.0, 62.0, 41.0)
    for drawn, edge in (
        ("(gr_arc (start 20 20) (end 20 10) (angle 270) ", (10.0, -30.0, 30.0, -10.0)),  # from the top
        ("(gr_arc (start 20 20) (end 20 10) (angle -90) ", (10.0, -20.0, 20.0, -10.0)),
        ("(gr_arc (start 20 10) (mid 27.0711 27.0711) (end 10 20) ", (10.0, -30.0, 30.0, -10.0)),
        ("(gr_poly (pts (arc (start 20 10) (mid 27.0711 27.0711) (end 10 20))) ", (10.0, -30.0, 30.0, -10.0)),
        ("(gr_curve (pts (xy 0 0) (xy 0 -4) (xy 8 -4) (xy 8 0)) ", (0.0, 0.0, 8.0, 3.0)),
    ):
        kicad.write_text(f"(kicad_pcb {drawn}(layer Edge.Cuts)))")
        assert read_outline(kicad)[0] == pytest.approx(edge, abs=1e-3)
    kicad.write_text(KICAD.replace("start 162 80", "start 162"))
    with pytest.raises(ConfigError, match="number"):
        read_outline(kicad)
    (tmp_path / "c.gbr").write_text("no edge")
    with pytest.raises(ConfigError, match="a Gerber file"):
        read_outline(tmp_path / "c.gbr")


def test_a_board_of_kicad_tells_its_parts_and_its_edge(call, folder):
    part = '(footprint "R:R_0402_1005Metric" (layer "F.Cu") (at {} 70) (property "Reference" "R{}"))\n'
    parts = "".join(part.format(at, at) for at in (110, 120))
    (folder / "pnp.csv").write_text(KICAD.replace("  (gr_line", f'  (layers (0 "F.Cu" signal))\n{parts}  (gr_line', 1))
    assert new(call, "--held") == 0
    outline = read_recipe(folder / "line7" / "recipe.yaml").outline
    assert (outline.x, outline.y) == ((0, 62), (0, 41))
    of_part = KICAD.replace("(gr_line", "(fp_line").partition("  (fp_line")  # as of a board in a standard form
    of_part = f'{of_part[0]} (footprint "X" (at 10 20 90) (layer "F.Cu") {"".join(of_part[1:])})'
    (folder / "c.kicad_pcb").write_text(of_part)
    assert read_outline(folder / "c.kicad_pcb")[0] == (-51.0, 160.0, -10.0, 222.0)
    (folder / "pnp.csv").write_text((folder / "pnp.csv").read_text().replace("at 110 70", "at 110 81"))  # over the edge
    assert run(call, "line9", "pnp.csv", "--held", unit=()).status == 0
    assert read_recipe(folder / "line9" / "recipe.yaml").outline.y == (-1, 41)
    assert ["from a file" in (folder / f"line{of}" / "recipe.yaml").read_text() for of in (7, 9)] == [True, False]
    (folder / "form.yaml").write_text("offset: [500, 0]\n")  # the edge in the file no longer lies around the parts
    assert run(call, "line8", "pnp.csv", "--held", "--answers", "form.yaml", unit=()).status == 0


EDGE = "(gr_line (start 0 0) (end 4 3) (layer Edge.Cuts))"


def test_a_board_of_kicad_tells_sizes_that_names_do_not(tmp_path):
    drawn = (
        '(fp_line (start -3 -1) (end 2 1) (layer "F.Fab")) (fp_circle (center 0 0) (end 1 0) (layer "F.Fab"))'
        '(fp_line (start 0 0) (end 9 9) (layer "F.SilkS")) (pad "1" smd (at 0 2 180) (size 1 4)))'
    )
    for text in ("U_X", "R_0402"):  # whose name tells no size, and one that does
        part = f'(footprint "L:{text}" (layer "F.Cu") (at 120 60 90) (property "Reference" "{text}") {drawn}'
        (tmp_path / "b.kicad_pcb").write_text(f"(kicad_pcb {part})")
        file = read_file(tmp_path / "b.kicad_pcb")
        drawn_in = drawn_sizes(tmp_path / "b.kicad_pcb", file.drawn)
        sizes = {name: (size.width_mm, size.height_mm) for name, size in drawn_in.items()}
        assert sizes == {text: (6, 5)}
        (planned,) = plan(convert(tmp_path / "b.kicad_pcb", None, Answers()), Side.TOP, drawn=drawn_in).parts
        assert planned.size_mm == ((6, 5) if text == "U_X" else (1, 0.5))
    (tmp_path / "b.kicad_pcb").write_text(f"(kicad_pcb {part}{EDGE})")  # beside another placement file
    edge, given = read_outline(tmp_path / "b.kicad_pcb")
    assert ({name: (size.width_mm, size.height_mm) for name, size in given.items()}, edge[2]) == ({"R_0402": (6, 5)}, 4)
    (tmp_path / "b.kicad_pcb").write_text(f"(kicad_pcb {part.replace('(size 1', '(size x')})")
    with pytest.raises(ConfigError):
        drawn_sizes(tmp_path / "b.kicad_pcb", read_file(tmp_path / "b.kicad_pcb").drawn)


def test_an_outline_in_another_frame_is_refused(call, folder):
    (folder / "b.kicad_pcb").write_text(KICAD.replace("100 80", "200 80"))
    assert new(call, "--outline", "b.kicad_pcb") == 2
    assert not (folder / "line7").exists()


def test_answers_say_how_the_file_is_read_and_are_kept(call, folder):
    text = ROWS.replace("PosX", "Ost").replace("PosY", "Nord").replace("Rot,Side", "Winkel,Seite")
    text = text.replace(",top", ",BS").replace(",bottom", ",LS")
    (folder / "pnp.csv").write_text(text, encoding="utf-8")
    (folder / "form.yaml").write_text(
        "columns: {x: Ost, y: Nord, rotation: Winkel, side: Seite}\nsides: {BS: top, LS: bottom}\n"
        "clockwise: true\ny: down\noffset: [1, 30]\n"
    )
    assert new(call, "--answers", "form.yaml") == 0
    places = {place.refdes: place for place in read_places(folder / "line7" / "parts.csv")}
    assert (places["R2"].x_mm, places["R2"].y_mm, places["R2"].rotation_deg) == (8.0, 25.0, 270.0)
    assert [site.refdes for site in made(folder).sites] == ["R1", "R2", "C1", "U1"]
    assert read_answers(folder / "line7" / "answers.yaml").sides == {"BS": "top", "LS": "bottom"}
    (folder / "form.yaml").write_text("colums: {x: Ost}\n")
    assert new(call, "--answers", "form.yaml", "--to", "other") == 2


PLACES = """\
Part,X,Y,Rot,Side,Package,component
P1,60,50,0,top,R_0402_1005Metric,M4 screw
P2,180,50,0,top,R_0402_1005Metric,M4 screw
P3,60,130,0,top,R_0402_1005Metric,M4 screw
"""


BLANK = np.full((200, 260, 3), 40, np.uint8)


def photographs(folder, **pictures):
    """Write pictures into the folder `boards`, and return it."""
    (boards := folder / "boards").mkdir(exist_ok=True)
    for name, pixels in pictures.items():
        cv2.imwrite(str(boards / f"{name}.png"), pixels)
    return boards


def in_pixels(call, *more):
    return run(call, "block", "places.csv", *more, unit=("--in-pixels",))


def test_places_in_pixels_of_pictures_make_a_board_without_marks(call, folder):
    (folder / "places.csv").write_text(PLACES)
    picture = BLANK.copy()
    picture[35:65, 40:80] = (10, 200, 90)  # around (60, 50)
    photographs(folder, b1=picture, b2=picture)
    said = in_pixels(call, "--images", "boards")
    assert said.status == 0
    assert "landmark" in said.words, "nothing tells a board that lies otherwise"
    assert left_to_do(folder / "block") == ["held", "M4-screw"]
    layout = made(folder, "block")
    recipe = layout.recipe
    assert (recipe.held, recipe.fiducials, recipe.components["M4-screw"].size) == (True, None, (40.0, 40.0))
    layout.check(rules.load("block").components, "block")
    assert recipe.picture == (BLANK.shape[1], BLANK.shape[0])
    assert not locate(np.pad(picture, ((0, 0), (0, 100), (0, 0))), layout).registered
    fit = locate(picture, layout).fit
    (site,) = [site for site in layout.sites if site.refdes == "P1"]
    corners = fit.pixels(np.array([(corner.x_mm, corner.y_mm) for corner in site.corners]))
    assert np.abs(corners.mean(axis=0) - (59.5, 49.5)).max() < 0.01
    photographs(folder, b3=picture[:-20])
    for more in (("--images", "boards"), (), ("--images", "boards/b1.png", "--side", "bottom")):
        assert in_pixels(call, *more, "--to", "other").status == 2


@pytest.mark.parametrize("separator", [",", ";", " "])
def test_places_in_pixels_need_neither_side_nor_rotation(separator, call, folder):
    lines = ("Ref,X,Y,component", "P1,60,50,screw", "P2,190,50,screw")
    (folder / "places.csv").write_text("\n".join(lines).replace(",", separator) + "\n")
    photographs(folder, b1=BLANK)
    assert in_pixels(call, "--images", "boards").status == 0
    placements = read_places(folder / "block" / "parts.csv")
    read = [(one.refdes, one.x_mm, one.y_mm, one.rotation_deg, one.side) for one in placements]
    assert read == [("P1", 60.0, -50.0, 0.0, "top"), ("P2", 190.0, -50.0, 0.0, "top")]


def test_folders_of_pictures_as_cameras_and_systems_leave_them(call, folder):
    (folder / "places.csv").write_text(PLACES)
    boards = photographs(folder, b1=BLANK)
    for name in ("._b1.png", "Thumbs.db", ".DS_Store", "notes.txt"):
        (boards / name).write_bytes(b"\0\5\x16\7")
    assert in_pixels(call, "--images", "boards").status == 0
    for name in ("IMG_1.HEIC", "b2.png"):
        (boards / name).write_bytes(b"\0\0\0\x18ftypheic" + bytes(90))
        said = in_pixels(call, "--images", "boards", "--to", "other")
        assert (said.status, name in said.err) == (2, True)
        (boards / name).unlink()


@pytest.mark.parametrize(("agreement", "is_sure"), [(0.2, False), (0.45, True)])
def test_without_marks_a_picture_that_agrees_little_may_show_another_board(monkeypatch, agreement, is_sure):
    parts = tuple(np.array([(x, 1.0), (x + 2, 1.0), (x + 2, 2.0), (x, 2.0)]) for x in (1.0, 5.0, 9.0))
    drawing = BoardDrawing(parts, (), (0.0, 0.0, 12.0, 8.0), outline_is_known=False)
    monkeypatch.setattr(found_camera, "poses", lambda *_: [Pose(10.0, 0.0, 60.0, 40.0, 0.5)])
    monkeypatch.setattr(found_camera, "agreement", lambda *_: agreement)
    board = find_board(np.full((80, 120, 3), 90, np.uint8), drawing, ())
    assert (board.doubt == "") == is_sure


def test_a_picture_of_one_grey_shows_no_board():
    drawing = BoardDrawing((np.array([(1.0, 1.0), (3.0, 1.0), (3.0, 2.0)]),), (), (0.0, 0.0, 12.0, 8.0), False)
    assert find_board(np.full((80, 120, 3), 90, np.uint8), drawing, ()) is None


@pytest.mark.slow
def test_the_edges_of_parts_tell_how_a_board_without_marks_lies(call, brought, folder):
    rows = (brought.at / "pnp.csv").read_text(encoding="utf-8").splitlines()
    still = [row for row in rows if "Fiducial" not in row and "MountingHole" not in row]
    (folder / "still.csv").write_text("\n".join(still) + "\n", encoding="utf-8")
    words = ("own", "still.csv", "--images", brought.at / "boards" / "SN1.png")
    assert run(call, *words).status == 2
    assert run(call, *words, "--held").status == 0
    layout = made(folder, "own")
    recipe = layout.recipe
    assert recipe.held
    assert brought.apart_px(locate(brought.picture(), layout).fit, corners_of(layout)) * recipe.um_per_pixel < 500


def test_the_bottom_side_needs_words_on_the_file(call, folder):
    rows = "\n".join(f"FID{n},,Fiducial_1mm,{n},{n * n},0,bottom" for n in (4, 6, 9)) + "\n"
    (folder / "pnp.csv").write_text(ROWS + rows, encoding="utf-8")
    bottom, x = ("--side", "bottom"), ("--bottom-x", "top")
    both = (*x, "--bottom-angle", "top-180")
    assert [new(call, *words) for words in (bottom, x, both, (*bottom, *both, "--to", "other"))] == [2, 2, 0, 0]


EMPTY = BoardDrawing((), (), (0.0, 0.0, 30.0, 20.0), False)


def test_boards_that_lie_both_ways_tell_no_camera(call, folder, monkeypatch):
    def found(pixels, *_):
        turn = 180.0 if pixels.mean() > 100 else 0.0
        return FoundBoard(MarkMatch((), (), Pose(10.0, turn, 160.0, 120.0, 1.0).fit(EMPTY)), 0.5, (320, 240))

    monkeypatch.setattr(first_board, "find_board", found)
    photographs(folder, a=np.full((240, 320, 3), 50, np.uint8), b=np.full((240, 320, 3), 150, np.uint8))
    assert new(call, "--images", "boards", "--held") == 0
    recipe = folder / "line7" / "recipe.yaml"
    assert "TODO" in recipe.read_text(encoding="utf-8").split("outline")[0]
    assert read_recipe(recipe).camera.turn == 0
    assert new(call, "--images", "boards/b.png", "--held", "--to", "one") == 0
    assert abs(read_recipe(folder / "one" / "line7" / "recipe.yaml").camera.turn) == 180


@pytest.mark.parametrize(("doubt", "left_out"), [("", ("U1",)), ("is it this board at all?", ())])
def test_a_part_is_left_out_only_where_it_is_sure_how_the_board_lies(call, folder, monkeypatch, doubt, left_out):
    def found(pixels, *_):
        pose = Pose(10.0, 0.0, 150.0, 200.0, 1.0)  # U1 lies beside the picture
        return FoundBoard(MarkMatch((), (), pose.fit(EMPTY)), 0.2, (160, 400), doubt)

    monkeypatch.setattr(first_board, "find_board", found)
    cv2.imwrite(str(folder / "a.png"), np.full((400, 160, 3), 50, np.uint8))
    said = run(call, "line7", "pnp.csv", "--images", "a.png", "--held")
    assert said.status == 0, said.err
    assert read_answers(folder / "line7" / "answers.yaml").not_inspected == left_out


@pytest.mark.slow
def test_two_points_that_a_person_shows_tell_how_a_board_lies_that_is_not_seen(call, folder):
    cv2.imwrite(str(folder / "noise.png"), np.random.default_rng(1).integers(80, 99, (240, 320, 3), np.uint8))
    assert new(call, "--images", "noise.png", "--mark", "FID1=280,200", "--mark", "FID2=280,-60") == 0
    recipe = read_recipe(folder / "line7" / "recipe.yaml")
    assert (recipe.um_per_pixel, recipe.camera.turn) == (pytest.approx(100), 90)


POINTS = ["FID9=1,2 FID1=3,40", "FID1=1,2", "FID1=1,2 FID2=9,9", "FID1:1,2 FID2=9,99", "R1=50,50 R2=70,50 C1=90,50"]


@pytest.mark.parametrize("points", POINTS)
def test_points_that_tell_no_place_are_refused(call, folder, points):
    cv2.imwrite(str(folder / "noise.png"), np.random.default_rng(1).integers(80, 99, (240, 320, 3), np.uint8))
    assert new(call, "--images", "noise.png", *[word for at in points.split() for word in ("--mark", at)]) == 2
    assert not (folder / "line7").exists()
