"""`coe-board parts`: a placement file of another program becomes `parts.csv`, and what a person said of it is kept."""

from pathlib import Path

import pytest

from coe.board import parts_list
from coe.board.parts_list import PlacedPart
from coe.bring.parts import answers
from coe.bring.parts.converting import convert
from coe.cli import board_command
from coe.errors import ConfigError
from coe.placement import read_recipe

ROWS = """\
Ref,Val,Package,PosX,PosY,Rot,Side
R1,10k,R_0402_1005Metric,5,5,0,top
R2,10k,R_0402_1005Metric,7,5,90,top
R3,N.C.,R_0402_1005Metric,9,5,90,top
Q9,BC847,SOT-23,9,9,30,bottom
FID1,Fiducial,Fiducial_1mm_Mask2mm,2,2,0,top
TP1,TestPoint,TestPoint_Pad,3,3,0,top
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pnp.csv").write_text(ROWS, encoding="utf-8")
    return tmp_path


FITTED = ("--units", "mm", "--not-fitted", "N.C.")


def parts(call, *more):
    return call("parts", "pnp.csv", "--yes", *more, command=board_command)


def rows(folder):
    read = parts_list.read_places(folder / "parts.csv")
    return [(one.refdes, one.x_mm, one.y_mm, one.rotation_deg, str(one.side), one.component) for one in read]


KNOWN = [
    *(("R1", 5, 5, 0, "top", "R0402-10k"), ("R2", 7, 5, 90, "top", "R0402-10k")),
    *(("FID1", 2, 2, 0, "top", ""), ("TP1", 3, 3, 0, "top", "")),
]


def test_what_was_answered_once_is_not_asked_of_a_new_export(call, folder):
    said = call("parts", "pnp.csv", *FITTED, command=board_command)
    assert (said.status, "--yes" in said.err) == (2, True)  # nobody answers for a person who is not there
    assert parts(call).status == 2  # the file states no unit
    assert parts(call, "--units", "mm").status == 2  # does N.C. say that R3 is not fitted?
    said = parts(call, *FITTED)
    assert (said.status, rows(folder), "R3" in said.err, "Q9" in said.err) == (0, KNOWN, True, True)
    assert (folder / "parts.csv").read_text(encoding="utf-8").startswith("# ")
    export = ROWS.replace("R1,10k,R_0402_1005Metric,5", "R1,10k,R_0402_1005Metric,6").replace("R2,", "R7,")
    (folder / "pnp.csv").write_text(export, encoding="utf-8")
    said = parts(call)
    assert said.status == 0
    told = [line for line in said.err.splitlines() if line.startswith("parts.csv:")]
    assert [line.split()[1] for line in told] == ["came", "went", "moved"]
    assert [name in line for name, line in zip(("R7", "R2", "R1"), told, strict=True)] == [True] * 3
    assert rows(folder)[:2] == [("R1", 6, 5, 0, "top", "R0402-10k"), ("R7", 7, 5, 90, "top", "R0402-10k")]


def test_a_name_that_a_person_gives_to_a_package_stays_and_no_new_part_takes_it(call, folder):
    assert parts(call, *FITTED).status == 0
    path = folder / answers.NAME
    path.write_text(path.read_text(encoding="utf-8").replace("R0402-10k", "R0402-1k") + "not_inspected: [R2]\n")
    (folder / "pnp.csv").write_text(ROWS + "R8,1k,R_0402_1005Metric,11,5,0,top\n", encoding="utf-8")
    assert parts(call).status == 0
    named = {row[0]: row[-1] for row in rows(folder)}
    assert named == {"R1": "R0402-1k", "R2": "", "FID1": "", "TP1": "", "R8": "R0402-1k-2"}


def test_the_bottom_side_is_as_seen_from_the_top_with_angles_as_the_camera_sees_them(call, folder):
    assert parts(call, *FITTED, "--bottom-x", "top", "--bottom-angle", "top-180").status == 0
    assert ("Q9", 9, 9, 150, "bottom", "SOT-23-BC847") in rows(folder)
    assert parts(call, "--bottom-x", "bottom", "--bottom-angle", "bottom").status == 0
    assert ("Q9", -9, 9, 30, "bottom", "SOT-23-BC847") in rows(folder)
    (folder / "pnp.csv").write_text(ROWS.replace(",top", ",bottom"), encoding="utf-8")
    assert parts(call, *FITTED, "--to", "other").status == 2, "a file of the bottom side alone is asked about"


def test_columns_are_named_by_a_person_where_nobody_knows_them(call, folder):
    (folder / "pnp.csv").write_text("Teil;Ost;Nord;Dreh;Typ;Lage\nR1;5,5;1,25;0;A;oben\n", encoding="utf-8")
    assert parts(call, "--units", "mm").status == 2
    assert parts(call, "--columns", "Teil").status == 2
    more = "refdes=Teil,x=Ost,y=Nord,rotation=Dreh,component=Typ"
    assert parts(call, "--units", "mm", "--columns", more).status == 0
    assert rows(folder) == [("R1", 5.5, 1.25, 0, "top", "A")]
    assert parts(call).status == 0


def test_answers_are_read_as_they_are_written(folder):
    said = answers.Answers.model_validate(
        {
            "unit": "mil",
            "columns": {"refdes": 'a "b"'},
            "not_fitted": ["N.C.", "NC/*"],
            "offset": [1.5, -2],
            "bottom": {"x": "top", "angle": "top-180"},
            "packages": [{"package": "Q: 1", "value": "", "component": "Q"}, {"refdes": "R1", "component": "R"}],
        }
    )
    assert answers.read(Path("answers.yaml"), said.text().encode()) == said
    assert answers.read(Path("answers.yaml"), answers.Answers().text().encode()) == answers.Answers()
    with pytest.raises(ConfigError, match=r"answers.yaml:1: .*'colums'"):
        answers.read(Path("answers.yaml"), b"colums: {}\n")


def test_the_parts_of_a_panel_are_named_as_those_of_one_board(folder):
    lines = [f"Board_{n}-{name},{value},P,{x + 20 * n},5,0,top" for n in range(2) for name, value, x in
             (("R1", "1k", 1), ("R2", "2k", 3), ("TP1", "1k", 5))]  # fmt: skip
    (folder / "pnp.csv").write_text("\n".join([ROWS.splitlines()[0], *lines]) + "\n", encoding="utf-8")
    said = answers.Answers.model_validate({"unit": "mm", "packages": [{"refdes": "R2", "component": "B"}]})
    named = [(part.refdes, part.component) for part in convert(folder / "pnp.csv", None, said).parts]
    one = [("R1", "P-1k"), ("R2", "B"), ("TP1", "")]
    assert named == [(f"Board_{n}-{refdes}", component) for n in range(2) for refdes, component in one]


def test_a_bom_alone_is_a_list_without_places(call, folder):
    (folder / "list.csv").write_text('Designator,Comment,DNP\n"R1, R2",R0402,\nR9,R0402,x\n', encoding="utf-8")
    assert call("parts", "--yes", command=board_command).status == 2
    assert call("parts", "--bom", "list.csv", "--yes", command=board_command).status == 0
    assert parts_list.read(folder / "parts.csv") == (PlacedPart("R0402", "R1"), PlacedPart("R0402", "R2"))
    assert call("parts", "--bom", "parts.csv", "--yes", command=board_command).status == 2, "it would replace itself"


def test_a_name_that_begins_as_a_remark_is_a_part(call, folder):
    part = '<placement id="#1" side="Top" part-id="R"><location units="Millimeters" x="1" y="2"/></placement>'
    (folder / "board.xml").write_text(f"<openpnp-board>{part}</openpnp-board>", encoding="utf-8")
    assert call("parts", "board.xml", "--yes", command=board_command).status == 0
    assert [row[0] for row in rows(folder)] == ["#1"]


def test_a_board_is_made_from_what_was_answered_before(call, folder):
    more = "".join(f"FID{n},Fiducial,Fiducial_1mm,{x},{y},0,top\n" for n, x, y in ((2, 28, 2), (3, 2, 18)))
    (folder / "pnp.csv").write_text(ROWS + more, encoding="utf-8")
    assert parts(call, *FITTED, "--to", "line7").status == 0
    path = folder / "line7" / "answers.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("R0402-10k", "R10k"), encoding="utf-8")
    words = ("new", "line7", "--placements", "pnp.csv", "--yes")
    assert call(*words, command=board_command).status == 0
    assert "R10k" in read_recipe(folder / "line7" / "recipe.yaml").components
    assert parts_list.read_places(folder / "line7" / "parts.csv")[0].component == "R10k"
    assert call(*words, command=board_command).status == 2, "the recipe is never replaced"


def test_a_mark_of_the_package_of_a_part_stays_a_mark_and_a_package_of_marks_alone_can_be_named(folder):
    rows = "P1,x,PIN,1,1,0,top\nTP1,x,PIN,2,2,0,top\nTP2,x,PAD,3,3,0,top\nTP3,x,PAD,4,4,0,top\n"
    (folder / "pnp.csv").write_text(f"{ROWS.splitlines()[0]}\n{rows}", encoding="utf-8")

    def named(said):
        return [part.component for part in convert(folder / "pnp.csv", None, said).parts]

    said = convert(folder / "pnp.csv", None, answers.Answers.model_validate({"unit": "mm"})).answers
    assert named(said) == ["PIN-x", "", "", ""], "the next export is named as the first one"
    pads = {"package": "PAD", "value": "x", "component": "PAD"}
    by_name = {"refdes": "TP1", "component": "PIN-x"}
    more = said.with_more({"packages": [by_name, pads, *said.model_dump(mode="json")["packages"]]})
    assert named(more) == ["PIN-x", "PIN-x", "PAD", "PAD"]
