"""The pages that teach a board: files of strangers, words on them, undo, and that the files are those of the commands.

Here no command runs; tests/station/test_serve_teach_browser.py goes the whole way.
"""

import asyncio
import functools
import io
import json
import re
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import drawn_boards
import pytest
import yaml
from openpyxl import Workbook
from openpyxl.styles import Font
from PIL import Image
from serve_rows import the
from serving import png, problem, put, signed_in
from stations import deciding, state_of
from waiting import eventually

from coe.board import rules
from coe.bring.board.package_sizes import LIBRARY, read_library
from coe.helpers.strict_model import of_json
from coe.placement import read_recipe
from coe.serve.clock import now_us
from coe.serve.enums import Role
from coe.serve.gate import teach_routes
from coe.serve.recipe_content import RecipeContent
from coe.serve.teach import table_text, teach_steps, teach_work
from coe.serve.teach.package_table import rows_of
from coe.serve.teach.take_results import CUT, compared, take_chosen, take_crops
from coe.serve.teach.teach_draft import STATE, BoardDraft
from coe.serve.teach.teach_steps import TeachStep, current, states
from coe.serve.teach.teach_work import Bounds, Work, Works, log_of

ROWS = """\
Ref,Val,Package,PosX,PosY,Rot,Side
P1,10k,R_0402_1005Metric,5,5,0,top
P2,1u,C_0603_1608Metric,10,8,90,top
P3,10k,R_0402_1005Metric,15,11,215,top
P4,reset,SW_B3U,6,11,30,top
"""
MARKS = "".join(f"{name},Fiducial,Fiducial_1mm,{x},{y},0,top\n" for name, (x, y) in drawn_boards.FIDUCIALS.items())
RECIPE = """\
# by hand
recipe: line7-top
side: top
um_per_pixel: 50
outline: {x: [0, 20], y: [0, 16]}
fiducials:
  diameter: 1
  search: 2.5
  at: {F1: [1.5, 1.5], F2: [18.5, 1.5], F3: [1.5, 14.5]}
components:
  R10k: {size: [2.4, 1.2]}  # 2: P1, P3
  C1u: {size: [2, 2]}
  SW_B3U: {size: [3, 3]}  # TODO: the size of SW_B3U; 3 x 3 mm is a guess
"""
ANSWERS = """\
packages:
  - {package: "R_0402*", component: R10k}
  - {package: "C_0603_1608Metric", value: "1u", component: C1u}
  - {package: "SW_B3U", component: SW_B3U}
not_inspected: ["F1", "F2", "F3"]
"""
RULES = """\
board: line7
experts:
  first-look: {kind: difference, labels: [different], input: 160, reject: [different], then: {none: OK}}
components:  # mine
  R10k: {count: 2, inspect: first-look, reference: R10k}
  C1u: {count: 1, inspect: first-look, reference: C1u}
  SW_B3U: {count: 1, inspect: first-look, reference: SW_B3U}
"""
NAMED = [
    {"package": "R_0402_1005Metric", "value": "10k", "component": "R10k", "size": [2.4, 1.2]},
    {"package": "C_0603_1608Metric", "value": "1u", "component": "C1u", "size": [2, 2]},
    {"package": "SW_B3U", "value": "reset", "component": "SW_B3U", "size": [3.6, 2.6]},
]


class Asked(Works):
    """Says which commands would run, and runs none."""

    def __init__(self):
        super().__init__()
        self.commands = []

    def begin(self, draft, what, then, commands):
        self.commands += commands


@pytest.fixture(autouse=True)
def asked(served):
    served.gate.works = Asked()
    return served.gate.works


def draft_in(served):
    return BoardDraft(served.gate.config.data / "teach", "line7")


def begun_by_commands(served):
    """Write what `coe-board new` and a person have written; the gate has not seen it."""
    draft = draft_in(served)
    for path, text in ((draft.recipe, RECIPE), (draft.rules, RULES), (draft.answers, ANSWERS)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return draft


def send(client, kind, content, name):
    # A process of its own may read it, and starts slowly on a busy machine.
    return client.put(f"/teach/line7/files/{kind}", content=content, params={"name": name}, timeout=120)


@functools.cache
def board_png():
    picture = io.BytesIO()
    Image.fromarray(drawn_boards.draw(drawn_boards.layout())).save(picture, "png", compress_level=1)
    return picture.getvalue()


@pytest.fixture
def draft(served):
    """A draft of commands that goes on: the placement file and a picture come in, and it is said how they read."""
    draft = begun_by_commands(served)
    assert send(served.engineer, "placements", (ROWS + MARKS).encode(), "pnp.csv").status_code == 201
    assert send(served.engineer, "boards", board_png(), "SN1.png").status_code == 201
    draft.say(draft.state.model_copy(update={"units": "mm", "read": True, "fits": True}))
    draft.keep(draft.read())
    return draft


def test_only_who_may_change_recipes_teaches_and_a_session_needs_its_token(served, draft):
    for client, refused, page in ((served.feeder, 403, 403), (served.operator, 403, 403), (served.nobody, 401, 303)):
        for operation in teach_routes.router.operations:
            path = re.sub(r"{draft}", "line7", operation.path)
            assert client.request(operation.method, re.sub(r"{[^}]*}", "x", path)).status_code == refused, path
        for path in ("/teach", "/teach/line7", "/teach/line7/place"):
            assert client.get(path).status_code == page
    with closing(signed_in(served, Role.ENGINEER)) as engineer, closing(signed_in(served, Role.OPERATOR)) as operator:
        assert engineer.post("/teach/line7/undo").status_code == 403
        assert ">Teach <" in engineer.get("/recipes").text
        assert "/teach" not in operator.get("/recipes").text


def test_a_board_is_begun_once_by_a_name_that_it_can_have(served):
    for name in ("", "../x", "a/b", ".x", "routing_rules", "line7.calibration", "x" * 101, "<b>"):
        problem(served.engineer.post("/teach", json={"name": name}), 422, "invalid")
    assert not list((served.gate.config.data / "teach").glob("*"))
    assert served.engineer.post("/teach", json={"name": " line7 "}).json() == {"draft": "line7"}
    assert "line7" in problem(served.engineer.post("/teach", json={"name": "line7"}), 422, "invalid")["detail"]
    assert served.engineer.get("/teach/line8").status_code == 404
    assert current(draft_in(served)) is TeachStep.FILES


def test_a_file_of_any_name_stays_in_its_folder_and_two_of_one_name_both_stay(served):
    served.engineer.post("/teach", json={"name": "line7"})
    names = {
        "../../../etc/passwd": "passwd.png",
        "C:\\boards\\SN1.PNG": "SN1.PNG",
        "\u0441\u0435\u0440\u0438\u044f 7.png": "\u0441\u0435\u0440\u0438\u044f-7.png",
        "\u4e3b\u677f.png": "\u4e3b\u677f.png",
        "\U0001d505" * 90 + ".png": "\U0001d505" * 39 + ".png",
        "<img src=x onerror=alert(1)>.png": "img-src-x-onerror-alert-1-.png",
        "....": "file.png",
        "a" * 190 + ".png": "a" * 76 + ".png",
    }
    for name, kept in names.items():
        assert send(served.engineer, "boards", png(), name).json() == {"file": kept}
    assert {path.name for path in draft_in(served).pictures} == set(names.values())
    assert "<img src=x" not in served.engineer.get("/teach/line7/files").text
    sent = [send(served.engineer, "boards", png(seed), "SN.png").json()["file"] for seed in (0, 1, 0)]
    assert sent == ["SN.png", "SN-2.png", "SN.png"]


def test_broken_pictures_are_refused_beside_the_field(served):
    served.engineer.post("/teach", json={"name": "line7"})
    problem(send(served.engineer, "boards", b"no picture", "a.png"), 415, "not-a-picture")
    problem(send(served.engineer, "boards", png()[:-200], "torn.png"), 422, "invalid")
    served.limit(pixels=1000)
    problem(send(served.engineer, "boards", png(), "large.png"), 413, "too-large")
    served.limit(body=100)
    problem(send(served.engineer, "boards", png(), "heavy.png"), 413, "too-large")
    problem(send(served.engineer, "masks", png(), "a.png"), 404, "not-found")
    assert not draft_in(served).pictures


FAULTY = (
    b"",
    b"\xff\xfe\x00",
    b"Ref,Val\nR1,10k\n",
    b"Ref,Val,Package,PosX,PosY,Rot,Side\nR1,10k,R_0402,abc,5,0,top\n",
    b"Ref,Val,Package,PosX,PosY,Rot,Side\nR1,10k,R_0402,1,5,0,inside\n",
    b"Ref,Val,Package,PosX,PosY,Rot,Side\n" + b"R1,10k,R_0402,1,5,0,top\n" * 3,
    b"PK\x03\x04 no spreadsheet",
    b'"' * 5000,
)


def test_a_placement_file_with_faults_is_a_sentence_on_the_page(served):
    draft = begun_by_commands(served)
    for text in FAULTY:
        sent = send(served.engineer, "placements", text, "pnp.csv")
        assert sent.status_code in (201, 422), sent.text
        served.engineer.put("/teach/line7/files/boards", content=png(), params={"name": "SN1.png"})
        for step in TeachStep:
            page = served.engineer.get(f"/teach/line7/{step}")
            assert page.status_code == 200, page.text
            assert str(draft.root) not in page.text
        assert served.engineer.post("/teach/line7/reading", json={"read": True, "units": "mm"}).status_code == 422
        assert not draft.state.read


def test_the_page_shows_how_the_file_reads_and_asks_for_a_unit(served):
    draft = begun_by_commands(served)
    send(served.engineer, "placements", (ROWS + MARKS).encode(), "pnp.csv")
    send(served.engineer, "boards", png(), "SN1.png")
    send(served.engineer, "bom", b"Reference,Value,Footprint,DNP\nP1,10k,R_0402,\nP2,1u,C,x\n", "bom.csv")
    asked = served.engineer.get("/teach/line7/reading").text
    assert "--units" in asked
    assert served.engineer.post("/teach/line7/reading", json={"units": "mm"}).status_code == 202
    shown = served.engineer.get("/teach/line7/reading").text
    for fact in ("“PosX”", "7 top, 0 bottom", "F1, F2, F3", "Not fitted, according to the BOM:", ">P2<"):
        assert fact in shown
    assert [place.refdes for place in draft.read().places][:2] == ["P1", "P3"]


@pytest.mark.slow
def test_a_spreadsheet_is_kept_as_text(served):
    book, file = Workbook(), io.BytesIO()
    for row in ROWS.splitlines():
        book.active.append(row.split(","))
    book.active["A3"].font = Font(strike=True)
    log = book.create_sheet("log")
    for row in ("Date", "Today"):
        log.append([row])
    book.save(file)
    served.engineer.post("/teach", json={"name": "line7"})
    assert send(served.engineer, "placements", file.getvalue(), "pnp.xlsx").json() == {"file": "pnp.xlsx.csv"}
    draft = draft_in(served)
    draft.say(draft.state.model_copy(update={"units": "mm"}))
    assert [place.refdes for place in draft.read().places] == ["P1", "P2", "P3", "P4"]
    for note, words in zip(draft.state.notes["placements"], ("not read: 'log'", "struck out"), strict=True):
        assert words in note
    board = io.BytesIO()
    with zipfile.ZipFile(board, "w") as archive:
        parts = "UNITS=MM\nCMP 0 1 2 90 N R7 10k\nCMP 0 9 2 0 N R8 1k\n"
        archive.writestr("odb/steps/pcb/layers/comp_+_top/components", parts)
    assert send(served.engineer, "placements", board.getvalue(), "odb.zip").json() == {"file": "odb.zip.csv"}
    draft.say(draft.state.model_copy(update={"units": ""}))
    assert [(place.refdes, place.rotation_deg) for place in draft.read().places] == [("R7", 270), ("R8", 0)]
    for text in (ROWS, ROWS.replace("Ref,", "PKREF,")):
        assert send(served.engineer, "placements", text.encode(), "pnp.csv").json() == {"file": "pnp.csv"}
        assert (draft.folder / "placements" / "pnp.csv").read_text() == text


def spreadsheet(rows=3):
    book, file = Workbook(), io.BytesIO()
    for _ in range(rows):
        book.active.append(["R1"])
    book.save(file)
    return file.getvalue()


def test_while_tables_are_read_all_else_goes_on(served, monkeypatch):
    for name in ("line7", "line8"):
        assert served.engineer.post("/teach", json={"name": name}).status_code == 201
    go_on = threading.Event()

    async def slowly(content, name, kind):
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return ROWS, ()

    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        patch.setattr(table_text, "taken", slowly)
        sent = [pool.submit(send, served.engineer, kind, spreadsheet(), "a.xlsx") for kind in ("placements", "bom")]
        eventually(served.gate.works.reading.locked)
        for path in ("/teach", "/teach/line7/files", "/teach/line8/files", "/boards", "/api/v1/boards"):
            assert served.engineer.get(path).status_code == 200
        assert send(served.engineer, "boards", png(), "SN1.png").status_code == 201, "of the same board"
        assert served.engineer.post("/teach/line8/undo").status_code == 422
        go_on.set()
        assert [one.result().status_code for one in sent] == [201, 201]


@pytest.mark.parametrize(("bound", "least", "word"), [("MOST_S", 0.0, "more than 0 s"), ("MOST_TEXT", 5, "5 bytes")])
def test_a_table_that_takes_too_much_is_refused(served, monkeypatch, bound, least, word):
    monkeypatch.setattr(table_text, bound, least)
    served.engineer.post("/teach", json={"name": "line7"})
    content = spreadsheet() if bound == "MOST_S" else ROWS.encode()
    assert word in problem(send(served.engineer, "placements", content, "a.xlsx"), 422, "invalid")["detail"]
    assert served.engineer.get("/teach/line7/files").status_code == 200


@pytest.mark.slow
def test_the_process_that_reads_a_table_has_so_much_memory(monkeypatch):
    told = "import coe.serve.teach.table_text as t; t.text_of = lambda *a: bytearray(3 << 30); t.main()"
    run = subprocess.run([sys.executable, "-c", told, "placements", "a"], input=b"PK", capture_output=True, check=False)
    assert run.returncode == 1
    assert b"MemoryError" in run.stderr


def test_a_board_begun_with_commands_goes_on_at_the_page(served, draft):
    assert [one.step for one in states(draft) if one.done] == [TeachStep.FILES, TeachStep.READING, TeachStep.PLACE]
    shown = served.engineer.get("/teach/line7/map/SN1.png").json()
    assert (shown["registered"], [part["refdes"] for part in shown["parts"]]) == (True, ["P1", "P2", "P3", "P4"])
    fit, *_ = drawn_boards.truth(drawn_boards.layout(), drawn_boards.Pose())
    for x, y in ((0.0, 0.0), (20.0, 16.0)):
        (u, v, w) = (sum(a * b for a, b in zip(row, (x, y, 1), strict=True)) for row in shown["matrix"])
        assert (u / w, v / w) == pytest.approx(fit.matrix[:, :2] @ (x, y) + fit.matrix[:, 2], abs=0.5)


def test_points_that_a_person_shows_tell_the_map(served, draft):
    points = {"F1": [10, 300], "F2": [350, 300]}  # 17 mm, 340 pixels
    (a, b, c), (d, e, f), _ = served.engineer.post("/teach/line7/map", json={"points": points}).json()["matrix"]
    assert (a, b, c) == pytest.approx((20, 0, -20))
    assert (d, e, f) == pytest.approx((0, -20, 330))
    for wrong, word in (
        ({"F1": [10, 300]}, "two"),
        ({"F1": [10, 300], "XX": [1, 2]}, "XX"),
        ({"F1": [10, 300], "F2": [10, 301]}, "pixels"),
        ({"F1": [10, 10], "F2": [350, 10], "F3": [10, 270]}, "mirrored"),
    ):
        refused = problem(served.engineer.post("/teach/line7/map", json={"points": wrong}), 422, "invalid")
        assert word in refused["detail"]


def test_what_a_person_showed_counts_for_the_picture_whatever_is_found_in_it(served, draft):
    send(served.engineer, "boards", png(side=400), "SN2.png")
    draft.say(draft.state.model_copy(update={"fits": False}))
    at = "/teach/line7/map/SN2.png"
    assert not served.engineer.get(at).json()["registered"], "it shows no mark"
    points = {"F1": [30, 370], "F2": [370, 370], "F3": [30, 110]}
    asked = {"points": points, "picture": "SN3.png"}
    assert "SN3.png" in problem(served.engineer.post("/teach/line7/place", json=asked), 422, "invalid")["detail"]
    assert served.engineer.post("/teach/line7/place", json={"points": points, "picture": "SN2.png"}).status_code == 202
    shown = served.engineer.get(at).json()
    assert (shown["registered"], shown["by_hand"]) == (True, True)
    assert "no fiducial" in shown["why"]
    assert shown["matrix"][0] == pytest.approx([20, 0, 0])
    assert served.engineer.get("/teach/line7/map/SN1.png").json()["by_hand"] is False
    assert served.engineer.post("/teach/line7/fits").status_code == 204
    (draft.folder / CUT).mkdir()
    take_crops(draft)
    parts = {path.name for path in draft.photos.rglob("*.png")}
    assert parts == {f"{name}-SN2.png" for name in ("P1", "P2", "P3", "P4")}
    assert served.engineer.delete("/teach/line7/files/boards/SN2.png").status_code == 204
    assert not draft.state.shown, "another picture may come by this name"
    assert served.engineer.post("/teach/line7/undo").status_code == 200
    assert served.engineer.post("/teach/line7/place", json={}).status_code == 202
    assert not draft.state.shown


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_four_holes_of_a_photograph_are_clicked_and_its_parts_are_learned_decided_and_reported(served, data):
    """HC-SR04, VisA's pcb2: its holes show what lies below the board, so no disc is found where they are."""
    photograph = data / "visa-pcb-samples" / "pcb2" / "reference.jpg"
    if not photograph.is_file():
        pytest.skip(f"there is no {photograph}")
    served.gate.works = Works()
    config = served.gate.config
    line = config.line.model_copy(update={"store": config.data / "store", "memory": "1GB"})
    served.gate.config = config.model_copy(update={"line": line})
    draft = draft_in(served)
    assert served.engineer.post("/teach", json={"name": "line7"}).status_code == 201
    assert send(served.engineer, "placements", HC_SR04.encode(), "hcsr04.csv").status_code == 201
    assert send(served.engineer, "boards", photograph.read_bytes(), "SN1.jpg").status_code == 201

    def done(path, body=None):
        assert served.engineer.post(f"/teach/line7/{path}", json=body).status_code == 202
        while served.gate.works.is_running(draft):
            time.sleep(0.2)

    done("reading", {"units": "mm", "read": True, "held": True})
    holes = {"H1": [211, 358], "H2": [1117, 359], "H3": [1117, 733], "H4": [211, 731]}
    done("place", {"points": holes, "picture": "SN1.jpg"})
    assert served.engineer.get("/teach/line7/map/SN1.jpg").json()["registered"]
    assert served.engineer.post("/teach/line7/fits").status_code == 204
    of_component = {row.component: row for row in rows_of(draft) if not row.is_left_out}
    rows = [(row.package, row.value, name, row.size_mm) for name, row in of_component.items()]
    done("packages", {"rows": [dict(zip(NAMED[0], row, strict=True)) for row in rows]})
    cut = [path.relative_to(draft.photos).as_posix() for path in draft.photos.rglob("*-SN1.png")]
    assert len(cut) >= 14
    assert served.engineer.post("/teach/line7/marks", json={"marks": dict.fromkeys(cut, "good")}).is_success
    done("learn", {"keep_back": False})
    assert the(served.gate.works.of(draft)).state == "done", log_of(draft)
    served.gate.works.close()
    recipe = served.engineer.get("/teach/line7/recipe").json()
    assert served.engineer.post("/api/v1/recipes/line7", json=recipe).status_code == 201
    path = "/api/v1/recipes/line7/1"
    overlay = served.engineer.post(f"{path}/overlay", content=photograph.read_bytes()).headers
    word = {"picture": overlay["x-picture-sha256"], "proof": overlay["x-overlay-proof"]}
    word["blind_to"] = ["not as its fixture holds it"]
    assert served.engineer.post(f"{path}/confirmation", json=word).is_success
    assert served.engineer.post(f"{path}/activate").is_success
    put(served.feeder, "k1", "top", photograph.read_bytes())
    body = {"recipe": "line7", "serial": "SN1", "whole": "top"}
    with deciding(served.gate.config, served.database, None):
        while not (posted := served.feeder.post("/api/v1/boards/k1", json=body)).is_success:
            time.sleep(0.5)
        board = posted.json()["board"]
        while (found := state_of(served.database, board)).verdict is None:
            time.sleep(0.2)
    assert (found.components, found.reason) == (len(cut), "")
    assert "SN1" in served.engineer.get(f"/boards/{board}").text
    assert ",line7,1," in served.engineer.get("/api/v1/reports/calls.csv?hours=1").text or not found.calls


HC_SR04 = """\
Ref,Val,Package,PosX,PosY,Rot,Side
R5,10k,R_0603,14.83,16.20,0,top
R4,120k,R_0603,14.83,14.12,0,top
C2,100n,C_0603,14.83,12.04,0,top
R3,3M3,R_0603,14.83,9.90,0,top
C6,100n,C_0603,14.83,7.66,0,top
C3,100n,C_0603,14.83,5.58,0,top
C4,100n,C_0603,30.16,16.20,0,top
R6,7k5,R_0603,30.16,14.12,0,top
C5,100n,C_0603,30.16,12.04,0,top
R1,2k2,R_0603,30.16,9.90,0,top
C1,100n,C_0603,30.16,7.66,0,top
R2,47k,R_0603,30.16,5.58,0,top
U3,RCWL-9206,SOIC-16,4.05,9.96,90,top
U2,RCWL-9300,SOIC-14,22.50,9.85,0,top
U1,LM324,SOIC-14,40.60,10.10,0,top
H1,MountingHole,MountingHole,1.31,18.72,0,top
H2,MountingHole,MountingHole,43.84,18.61,0,top
H3,MountingHole,MountingHole,43.84,1.15,0,top
H4,MountingHole,MountingHole,1.37,1.26,0,top
"""
HELD = """\
recipe: line7-top
side: top
um_per_pixel: 50  # TODO: the board was not found
outline: {x: [0, 20], y: [0, 16]}
held: true  # TODO: does a fixture hold each board in this place?
components:
  part: {size: [2.4, 1.2]}
"""
OF_HELD = 'packages: [{package: "*", component: part}]\nnot_inspected: ["F*"]\n'


def test_a_board_that_a_fixture_holds_is_decided_by_who_looked_at_it(served, draft):
    (draft.folder / STATE).unlink()
    draft.recipe.write_text(HELD)
    draft.answers.write_text(OF_HELD)
    said = {"units": "mm", "read": True, "held": True, "fits": False, "named": True}
    draft.say(draft.state.model_copy(update=said))
    draft.keep(draft.read())
    shown = served.engineer.get("/teach/line7/map/SN1.png").json()
    assert (shown["registered"], shown["held"]) == (False, True), "nobody knows the scale"
    problem(served.engineer.post("/teach/line7/fits"), 422, "invalid")
    draft.say(draft.state.model_copy(update={"open": ("held",)}))
    assert served.engineer.get("/teach/line7/map/SN1.png").json()["registered"]
    assert served.engineer.post("/teach/line7/fits").status_code == 204
    assert {one.step for one in states(draft) if one.can} >= {TeachStep.PICTURES}, "nothing is left to decide"
    assert read_recipe(draft.recipe).held


def rows_sent(served, *changes):
    rows = [dict(row) for row in NAMED]
    for number, change in changes:
        rows[number].update(change)
    return served.engineer.post("/teach/line7/packages", json={"rows": rows})


def test_the_commands_are_those_that_a_person_would_type(served, draft, asked):
    said = {"units": "mm", "side": "bottom", "bottom_x": "top", "bottom_angle": "top-180", "read": True}
    problem(served.engineer.post("/teach/line7/reading", json=said), 422, "invalid")  # it has no bottom side
    assert served.engineer.post("/teach/line7/reading", json={"units": "mm", "read": True}).status_code == 202
    points = {"F1": [10, 300], "F2": [350, 300]}
    assert served.engineer.post("/teach/line7/place", json={"points": points, "picture": "SN1.png"}).status_code == 202
    assert rows_sent(served).status_code == 202
    search, _, shown, _, crop, _ = [" ".join(words) for words in asked.commands]
    file = "--placements line7/placements/pnp.csv --answers line7/answers.yaml --yes"
    assert search == f"coe-board new line7 --to line7/found {file} --images line7/boards"
    assert shown == f"{search} --mark F1=10.00,300.00 --mark F2=350.00,300.00"
    where = "--images line7/boards --recipe line7/recipe.yaml"
    assert crop == f"coe-experts crop routing_rules/line7.yaml {where} --out line7/cut"


def test_names_go_into_both_files_and_two_rows_of_one_name_become_one_component(served, draft):
    assert rows_sent(served, (1, {"component": "cap"})).status_code == 202
    recipe, board = read_recipe(draft.recipe), rules.load(str(draft.rules))
    sizes = {name: spec.size for name, spec in recipe.components.items()}
    assert sizes == {"R10k": (2.4, 1.2), "cap": (2, 2), "SW_B3U": (3.6, 2.6)}
    assert {name: component.count for name, component in board.components.items()} == {"R10k": 2, "SW_B3U": 1, "cap": 1}
    assert [site.component for site in draft.layout.sites] == ["R10k", "cap", "R10k", "SW_B3U"]
    assert draft.open_lines == []
    (known,) = read_library(draft.root / LIBRARY)
    assert (known.package, known.size) == ("SW_B3U", (3.6, 2.6)), "the next board knows what a person said"
    assert rows_sent(served, (1, {"component": "R10k"})).status_code == 202
    assert {one.component for one in draft.layout.sites} == {"R10k", "SW_B3U"}
    assert rules.load(str(draft.rules)).components["R10k"].count == 3


def test_what_is_not_inspected_can_be_inspected_again_and_names_that_do_not_fit_change_nothing(served, draft):
    assert rows_sent(served, (2, {"component": None})).status_code == 202
    assert [site.refdes for site in draft.layout.sites] == ["P1", "P2", "P3"]
    assert rows_sent(served, (2, {"component": "switch"})).status_code == 202
    assert [site.component for site in draft.layout.sites][-1] == "switch"
    before = draft.state
    for change in ({"component": "<b>"}, {"size": [0, 1]}, {"package": "no such"}):
        assert rows_sent(served, (0, change)).status_code == 422, change
    answer = rows_sent(served, *((row, {"component": None}) for row in range(3)))
    assert "no part" in problem(answer, 422, "invalid")["detail"]
    assert draft.state == before


def test_a_component_that_an_expert_has_learned_needs_no_reference_under_another_name(served, draft):
    patch = "  C1u: {kind: patch, labels: [strange], input: 64, reject: [strange], then: {none: OK}}\ncomponents:"
    learned = RULES.replace("inspect: first-look, reference: C1u", "inspect: C1u").replace("components:", patch)
    draft.say(draft.state.model_copy(update={"rules": yaml.load(learned, yaml.BaseLoader)}))
    assert rows_sent(served, (1, {"component": "cap"})).status_code == 202
    component = rules.load(str(draft.rules)).components["cap"]
    assert (component.root.expert, component.references) == ("C1u", ())


def test_photographs_go_where_their_parts_go(served, draft):
    with_photos(draft)
    before = photos_of(draft)
    rows_sent(served, (1, {"component": "R10k"}))
    assert "R10k/P2-SN1.png" in photos_of(draft)
    served.engineer.post("/teach/line7/marks", json={"marks": {"R10k/P2-SN1.png": "good"}})
    rows_sent(served, (1, {"component": "cap"}))
    assert "cap/good/P2-SN1.png" in photos_of(draft), "else R10k would learn that it is good"
    rows_sent(served, (1, {"component": "SW_B3U"}), (2, {"component": "cap"}))
    assert {"SW_B3U/good/P2-SN1.png", "cap/missing/P4-SN1.png"} < photos_of(draft)
    rows_sent(served, (1, {"component": None}), (2, {"component": "cap"}))
    assert photos_of(draft) == {"R10k/P1-SN1.png", "R10k/P3-SN1.png", "cap/missing/P4-SN1.png"}
    while photos_of(draft) != before:
        assert served.engineer.post("/teach/line7/undo").is_success


def test_no_photograph_takes_the_place_of_another(served, draft):
    with_photos(draft, ("R10k/closeup.png", "C1u/closeup.png", "SW_B3U/P1-SN1.png"))
    state, before = draft.state, photos_of(draft)
    problem(rows_sent(served, *((row, {"component": "part"}) for row in range(3))), 422, "invalid")
    assert (draft.state, photos_of(draft)) == (state, before)
    assert rows_sent(served, (1, {"component": "cap"})).status_code == 202
    assert photos_of(draft) == {"R10k/closeup.png", "cap/closeup.png", "SW_B3U/P1-SN1.png"}, "only what was said moves"


CUT_OUT = ("R10k/P1-SN1.png", "R10k/P3-SN1.png", "C1u/P2-SN1.png", "SW_B3U/missing/P4-SN1.png")
GOOD = ("R10k/good/P1-SN1.png", "R10k/good/P3-SN1.png", "C1u/good/P2-SN1.png", "SW_B3U/good/P4-SN1.png")


def photos_of(draft):
    return {path.relative_to(draft.photos).as_posix() for path in draft.photos.rglob("*.png")}


def with_photos(draft, names=CUT_OUT):
    for name in names:
        (draft.photos / name).parent.mkdir(parents=True, exist_ok=True)
        (draft.photos / name).write_bytes(png())


def test_photographs_move_into_the_folder_of_what_they_show(served, draft):
    with_photos(draft)
    asked = {"R10k/P1-SN1.png": "good", "R10k/P3-SN1.png": "bad", "SW_B3U/missing/P4-SN1.png": "bad"}
    answer = served.engineer.post("/teach/line7/marks", json={"marks": asked}).json()
    assert answer["paths"] == {
        "R10k/P1-SN1.png": "R10k/good/P1-SN1.png",
        "R10k/P3-SN1.png": "R10k/bad/P3-SN1.png",
        "SW_B3U/missing/P4-SN1.png": "SW_B3U/missing/P4-SN1.png",
    }
    assert served.engineer.get("/teach/line7/photo/R10k/good/P1-SN1.png").headers["content-type"] == "image/png"
    for wrong in ("R10k/../../recipe.yaml", "R10k/none.png", "../../x.png", "/etc/hostname", "/etc/x.png"):
        assert served.engineer.get(f"/teach/line7/photo/{wrong}").status_code in (400, 404), wrong
        problem(served.engineer.post("/teach/line7/marks", json={"marks": {wrong: "good"}}), 422, "invalid")


def test_each_step_is_taken_back_one_after_another(served, draft):
    with_photos(draft)
    draft.say(draft.state.model_copy(update={"fits": False}))
    before = draft.recipe.read_text(), draft.rules.read_text()
    assert served.engineer.post("/teach/line7/fits").status_code == 204
    assert rows_sent(served, (1, {"component": "cap"})).status_code == 202
    assert (draft.photos / "cap" / "P2-SN1.png").is_file(), "a component that is renamed keeps its photographs"
    served.engineer.post("/teach/line7/marks", json={"marks": {"R10k/P1-SN1.png": "good"}})
    assert served.engineer.delete("/teach/line7/files/boards/SN1.png").status_code == 204

    last = teach_steps.last_step(draft)
    other = served.engineer.post(f"/teach/line7/undo?step={last.number - 1}")
    assert last.what in problem(other, 422, "invalid")["detail"], "another person may have made a step since"
    assert served.engineer.post(f"/teach/line7/undo?step={last.number}").json() == {"undone": last.what}
    assert served.engineer.delete("/teach/line7/files/boards/SN1.png").status_code == 204
    problem(served.engineer.post(f"/teach/line7/undo?step={last.number}"), 422, "invalid")
    assert served.engineer.post("/teach/line7/undo").is_success
    assert [path.name for path in draft_in(served).pictures] == ["SN1.png"]

    def undo():
        assert served.engineer.post("/teach/line7/undo").status_code == 200
        return draft_in(served)

    assert (undo().photos / "R10k" / "P1-SN1.png").is_file()
    undo()  # the parts that were cut out
    assert (undo().recipe.read_text(), draft.rules.read_text()) == before
    assert (draft.photos / "C1u" / "P2-SN1.png").is_file()
    assert not undo().state.fits
    assert not undo().pictures
    assert undo().placements is None
    problem(served.engineer.post("/teach/line7/undo"), 422, "invalid")


def test_a_restart_of_the_service_ends_what_runs_and_says_so(served, draft):
    work = Work(what="The board is looked for", then="place", commands=(("coe-board", "new"),))
    (draft.folder / "work.json").write_text(work.model_dump_json())
    assert served.engineer.get("/teach/line7/work").json()["state"] == "failed"
    assert "a restart ended this" in served.engineer.get("/teach/line7/place").text


def test_commands_that_take_too_much_are_ended_and_the_log_says_why(served, draft):
    work = Work(what="x", then="place", commands=(("python", "-c", "import time; time.sleep(600)"),))
    for bounds, said in ((Bounds(1, 60), "memory"), (Bounds(2**40, 0), "h;")):
        (draft.folder / "work.json").write_text(work.model_dump_json())
        teach_work.run(draft, bounds)
        assert of_json(json.loads((draft.folder / "work.json").read_bytes()), Work).state == "failed"
        assert said in log_of(draft)


def test_a_state_that_somebody_broke_is_a_sentence(served, draft):
    for broken in ("{", json.dumps({"units": 3}), "[]"):
        (draft.folder / STATE).write_text(broken)
        assert served.engineer.get("/teach/line7").status_code == 200
        assert served.engineer.get("/teach").status_code == 200


POINT = {"threshold": 0.5, "escapes": None, "false_calls": {"events": 0, "trials": 3, "at_most": 0.63}}
SCORED = {
    "confidence": 0.95,
    "experts": [
        {
            "expert": "first-look",
            "called_above": True,
            "threshold": 0.5,
            "now": POINT,
            "knows_all": {"false_calls": True, "escapes": False},
            "points": [POINT],
            "pictures": [{"photo": "R10k/good/P1-SN1.png", "good": True, "score": 0.01, "learned": True}],
        }
    ],
}


def test_nothing_is_learned_before_all_is_said(served, draft, asked):
    rows_sent(served)
    with_photos(draft)
    asked.commands.clear()
    refused = problem(served.engineer.post("/teach/line7/learn", json={}), 422, "invalid")
    assert refused["detail"].startswith("3 pictures")
    marks = {"R10k/P1-SN1.png": "good", "R10k/P3-SN1.png": "bad", "C1u/P2-SN1.png": "good"}
    served.engineer.post("/teach/line7/marks", json={"marks": marks})
    assert "SW_B3U" in problem(served.engineer.post("/teach/line7/learn", json={}), 422, "invalid")["detail"]
    served.engineer.post("/teach/line7/marks", json={"marks": {"SW_B3U/missing/P4-SN1.png": "good"}})
    assert served.engineer.post("/teach/line7/learn", json={"keep_back": True}).status_code == 202
    assert [words[:2] for words in asked.commands[:2]] == [("coe-experts", "split"), ("coe-experts", "choose")]


def test_all_pictures_are_learned_from_unless_some_are_kept_back(served, draft, asked):
    with_photos(draft)
    rows_sent(served)
    served.engineer.post("/teach/line7/marks", json={"marks": dict.fromkeys(photos_of(draft), "good")})
    assert served.engineer.post("/teach/line7/learn", json={"keep_back": True}).is_success
    draft.split.write_text("by split")
    assert 'id="keep-back" checked' in served.engineer.get("/teach/line7/learn").text
    assert served.engineer.post("/teach/line7/learn", json={"keep_back": False}).is_success
    assert not draft.split.is_file(), "choose would obey it"
    assert 'id="keep-back" checked' not in served.engineer.get("/teach/line7/learn").text
    served.engineer.post("/teach/line7/undo")
    assert draft.split.read_text() == "by split"
    served.engineer.post("/teach/line7/undo")
    assert not draft.split.is_file()


def test_scores_of_the_experts_before_do_not_stay_when_learning_ends_halfway(served, learned, asked):
    assert served.engineer.post("/teach/line7/learn", json={}).is_success  # no command runs, as after a kill
    assert not any(one.can for one in states(learned) if one.step in (TeachStep.THRESHOLD, TeachStep.ACTIVATE))
    served.engineer.post("/teach/line7/undo")
    assert all(one.can for one in states(learned) if one.step in (TeachStep.THRESHOLD, TeachStep.ACTIVATE))


def test_lines_of_chosen_experts_go_into_the_board_file(served, draft):
    chosen = draft.folder / "chosen" / "line7.yaml"
    chosen.parent.mkdir()
    chosen.write_text(
        "board: line7\nexperts:\n  R10k: {kind: patch, labels: [strange], input: 64, reject: [strange], then: "
        "{none: OK}}\ncomponents:\n  R10k: {inspect: R10k, polarity: yes}\n"
    )
    assert take_chosen(draft) == ["C1u", "SW_B3U"]
    board = rules.load(str(draft.rules))
    assert [one.root.expert for one in board.components.values()] == ["R10k", "first-look", "first-look"]
    assert [one.references for one in board.components.values()] == [(), ("line7/C1u",), ("line7/SW_B3U",)]
    assert (board.components["R10k"].count, board.components["R10k"].polarity) == (2, True)
    once = draft.rules.read_text()
    take_chosen(draft)
    assert draft.rules.read_text() == once, "learned again, the lines are replaced"
    make, learn = compared(draft, "store")
    assert make[:3] == ("coe-experts", "reference", "routing_rules/line7.yaml")
    assert learn[:3] == ("coe-experts", "train", "line7/first-look")


def test_the_recipe_is_what_the_files_say(served, draft, asked):
    assert send(served.engineer, "bom", b"Reference,Value,Footprint,DNP\nP4,reset,SW_B3U,x\n", "bom.csv").is_success
    draft.keep(draft.read())
    draft.say(draft.state.model_copy(update={"units": "mm", "read": True, "fits": True}))
    content = served.engineer.get("/teach/line7/recipe").json()
    texts = [yaml.load(text, yaml.BaseLoader) for text in (content["rules"], content["whole"]["recipe"])]
    assert texts == [yaml.load(text, yaml.BaseLoader) for text in (RULES, RECIPE)]
    parsed = RecipeContent.model_validate(content)
    assert sorted(parsed.components) == ["P1", "P2", "P3"], "the BOM leaves P4 out"
    assert served.engineer.get("/teach/line7/whole/SN1.png").content == draft.pictures[0].read_bytes()
    assert served.engineer.post("/teach/line7/threshold", json={"expert": "first-look", "threshold": 0.3}).is_success
    assert asked.commands[-1][-2:] == ("first-look", "0.3")
    assert served.engineer.post("/teach/line7/threshold", json={"expert": "x", "threshold": 0.3}).status_code == 422
    assert served.engineer.delete("/teach/line7/files/bom/bom.csv").status_code == 204
    assert current(draft) is TeachStep.READING, "without the BOM the placement file says something else"


BOARD_XML = """\
<?xml version="1.0" encoding="{}"?><openpnp-board>
<placement id="P1" side="Top" part-id="R-1µ"><location units="Millimeters" x="1" y="2" rotation="0"/></placement>
</openpnp-board>"""


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "gb18030", "windows-1252"])
def test_files_in_any_usual_encoding_are_read_and_xml_in_that_which_it_declares(served, draft, encoding):
    value = "贴片" if encoding == "gb18030" else "1µ"
    rows = (ROWS + MARKS).replace("reset", value)
    assert send(served.engineer, "placements", rows.encode(encoding), "pnp.csv").status_code == 201
    assert draft.read().places[3].value == value
    if encoding in ("utf-16", "windows-1252"):
        board = BOARD_XML.format(encoding).encode(encoding)
        assert send(served.engineer, "placements", board, "board.xml").status_code == 201
        assert "1µ" in str(draft.read().places[0])


@pytest.fixture
def learned(served, draft):
    """A draft that can be activated: each of its parts has a good picture, and each picture a score."""
    assert "comes later" in served.engineer.get("/teach/line7/threshold").text
    rows_sent(served)
    with_photos(draft, GOOD)
    (draft.folder / "scores.json").write_text(json.dumps(SCORED))
    assert current(draft) is TeachStep.THRESHOLD
    assert served.engineer.post("/teach/line7/bounded").status_code == 204
    assert current(draft) is TeachStep.ACTIVATE
    return draft


@pytest.mark.usefixtures("learned")
def test_each_step_is_a_page_once_those_before_it_are_done(served):
    for step in TeachStep:
        page = served.engineer.get(f"/teach/line7/{step}").text
        assert "comes later" not in page
        assert 'role="alert">' not in page.replace('role="alert" hidden>', ""), step


def test_files_that_were_replaced_twice_come_back_and_a_step_that_a_kill_ended_halfway_hinders_no_other(served, draft):
    versions = [(ROWS + MARKS + "\n" * more).encode() for more in range(3)]
    for version in versions[1:]:
        assert send(served.engineer, "placements", version, "pnp.csv").status_code == 201
    for version in reversed(versions[:2]):
        assert served.engineer.post("/teach/line7/undo").json() == {"undone": "pnp.csv added"}
        assert draft.placements.read_bytes() == version
    (draft.folder / "undo" / f"{now_us() + 10**12}").mkdir()
    assert served.engineer.post("/teach/line7/bounded").status_code == 204
    assert served.engineer.post("/teach/line7/undo").json() == {"undone": "Thresholds confirmed"}


def test_a_component_without_pictures_is_not_learned_nor_activated(served, learned):
    (learned.photos / "SW_B3U" / "good" / "P4-SN1.png").unlink()
    assert "SW_B3U" in problem(served.engineer.post("/teach/line7/learn", json={}), 422, "invalid")["detail"]
    assert current(learned) is TeachStep.PICTURES
    assert "Not cut yet: SW_B3U" in served.engineer.get("/teach/line7/pictures").text
    assert "comes later" in served.engineer.get("/teach/line7/activate").text


def test_what_was_learned_of_other_parts_or_pictures_is_learned_again(served, learned):
    assert rows_sent(served).status_code == 202
    assert current(learned) is TeachStep.ACTIVATE, "nothing was said otherwise"
    changes = (
        ("packages", {"rows": [{**NAMED[1], "component": "R10k"}]}),
        ("packages", {"rows": [{**NAMED[1], "size": [2.5, 2]}]}),
        ("marks", {"marks": {"R10k/good/P3-SN1.png": "bad"}}),
    )
    for path, said in changes:
        assert served.engineer.post(f"/teach/line7/{path}", json=said).is_success
        assert current(learned) in (TeachStep.LEARN, TeachStep.PICTURES), said
        while current(learned) is not TeachStep.ACTIVATE:
            assert served.engineer.post("/teach/line7/undo").is_success
