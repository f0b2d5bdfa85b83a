"""Exports: labelled folders that hold what people said, and that training takes: a line learns from its calls."""

import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import whole_boards
from drawn_boards import truth
from PIL import Image
from serve_rows import decide, ng, the
from serving import activated, config_of, hand_in, png, put, say, serving
from sqlalchemy import insert
from stations import deciding, quick_opener, state_of
from tiny_line import TINY
from waiting import eventually
from whole_boards import POSE, WHOLE, RedDevice, layout_of, picture_of

from coe.cli import experts_command
from coe.core import Verdict
from coe.placement import crop
from coe.results import marks
from coe.serve.clock import now_us
from coe.serve.database import audit, board_rows, call_rows, views
from coe.serve.database.board_rows import GoodComponent
from coe.serve.database.connecting import open_database
from coe.serve.database.tables import escape, unit_serial
from coe.serve.enums import BoardState, Outcome
from coe.serve.worker.station import Station


def with_answers(served):
    """Decide a board with four calls, of which three are answered, and two good parts."""
    parts = ("R1", "R2", "R3", "R4", "R8", "R9")
    hand_in(served.feeder, "k1", dict.fromkeys(parts, "A"))
    decided(served, "k1", parts[4:], parts[:4])
    words = ({"outcome": "confirmed"}, {"outcome": "false call"}, {"outcome": "accepted", "label": "chipped"})
    for id, word in enumerate(words, 1):
        assert say(served.operator, id, **word).status_code == 201


def decided(served, key, good, called):
    """Decide a board that was handed in, with these good parts and calls of the others."""
    view_of = {view.name: view.id for view in served.database.read(views.of_board, key)}
    rows = [{"expert": "body", "label": "good", "score": 0.99}]
    fine = [GoodComponent(refdes, "A", view_of[refdes], None, rows) for refdes in good]
    return decide(served.database, key, *(ng(refdes, view_id=view_of[refdes]) for refdes in called), fine=fine)


def listed(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != marks.MARKS)
    return sorted(str(path.relative_to(folder)) for path in files)


def exported(served):
    manifest = served.engineer.post("/api/v1/exports", json={"days": 1, "good": 9}).json()["manifest"]
    return {(one["board"], one["refdes"]) for one in json.loads(Path(manifest).read_text())["pictures"]}


def test_an_export_has_a_folder_for_each_expert_and_label(served):
    with_answers(served)
    answer = served.engineer.post("/api/v1/exports", json={"good": 1})
    assert answer.status_code == 201
    folder = Path(answer.json()["folder"])
    with served.database.reading() as connection:
        last = the(views.named(connection, "k1", "R8"))
        (entry, *_) = audit.newest(connection)
    pictures = ["chipped/call-3.png", "cracked/call-1.png", "good/call-2.png", f"good/good-{last.id}.png"]
    assert listed(folder) == [*(f"body/{name}" for name in pictures), "manifest.json"]
    assert (folder / "body/cracked/call-1.png").read_bytes() == png(0)
    assert answer.json()["counts"] == {"body": {"chipped": 1, "cracked": 1, "good": 2}}
    said = {mark.image: (mark.expert, mark.label, mark.by) for mark in marks.read(folder)}
    assert said["body/cracked/call-1.png"] == ("body", "cracked", "operator"), "`coe-experts learn` takes it"
    assert all((folder / image).is_file() for image in said)
    manifest = json.loads((folder / "manifest.json").read_text())
    first = manifest["pictures"][0]
    assert (first["outcome"], first["refdes"], first["verified_by"]) == (Outcome.CONFIRMED, "R1", "operator")
    assert (entry.action, entry.detail["pictures"]) == ("export", 4)


def test_labels_that_cannot_name_a_folder_and_false_calls_without_a_good_part_are_left_out_and_counted(served):
    with_answers(served)
    say(served.operator, 4, "confirmed", label="../../etc")
    with served.database.writing() as connection:
        connection.exec_driver_sql("UPDATE board SET findings = NULL")
    body = served.engineer.post("/api/v1/exports", json={}).json()
    assert body["counts"] == {"body": {"chipped": 1, "cracked": 1}}
    assert body["left_out"] == {"no answer has a label that can be the name of a folder": 2}
    assert not [path for path in listed(served.gate.config.data) if "etc" in path]


@pytest.mark.parametrize("outcome", [Outcome.CONFIRMED, Outcome.ACCEPTED])
def test_a_defect_is_never_exported_under_a_label_that_passes(served, outcome, monkeypatch):
    rows = (
        ("joint", "bridge", "", "joint/bridge"),  # scored too low to be NG
        ("body-b", "bad", "", "body-b/bad"),
        ("joint", "joint", "lifted", "joint/lifted"),
        ("joint", "none", "bridge", "joint/bridge"),
        ("joint", "joint", "", None),
        ("joint", "none", "", None),
        ("body-b", "ok", "", None),  # leads to another expert
        ("body-c", "ok", "", None),
        ("body-c", "bad", "ok", None),  # a person contradicts himself
        ("body", "fine", "", None),  # no recipe names this expert
    )
    for number, (expert, label, said, _) in enumerate(rows, 1):
        hand_in(served.feeder, f"k{number}", {"R1": "A"})
        (view,) = served.database.read(views.of_board, f"k{number}")
        doubt = replace(ng("R1", Verdict.REVIEW, view.id), expert=expert, label=label)
        decide(served.database, f"k{number}", doubt, fine=[])
        say(served.operator, number, outcome, label=said)
    saved = set[int]()
    monkeypatch.setattr(os, "fsync", lambda number: saved.add(os.fstat(number).st_ino))
    body = served.engineer.post("/api/v1/exports", json={}).json()
    assert saved >= {path.stat().st_ino for path in Path(body["folder"]).rglob("*")}
    manifest = json.loads(Path(body["manifest"]).read_text())
    files = [f"{row[-1]}/call-{number}.png" for number, row in enumerate(rows, 1) if row[-1]]
    assert listed(Path(body["folder"])) == sorted([*files, "manifest.json"])
    assert sum(body["left_out"].values()) == 6
    assert sorted(one["call"] for one in manifest["left_out_calls"]) == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(("where", "left"), [({"refdes": "R8"}, 1), ({"component": "A"}, 0), ({}, 0)])
def test_a_part_that_is_reported_as_an_escape_is_no_good_part(served, where, left):
    with_answers(served)
    with served.database.writing() as connection:
        board = the(board_rows.of_key(connection, "k1"))
        row = {"refdes": "", "component": "", "serial": "", "reported_us": now_us(), "reported_by": "ann", **where}
        connection.execute(insert(escape).values(board_id=board.id, **row))
    assert len(exported(served) & {(1, "R8"), (1, "R9")}) == left


def test_the_escape_of_a_unit_is_no_good_part_of_its_panel(served):
    put(served.feeder, "p1", "left%2FR1")
    said = {"recipe": "tiny", "serial": "P1", "views": {"left/R1": {"refdes": "left/R1", "component": "A"}}}
    assert served.feeder.post("/api/v1/boards/p1", json=said).status_code == 202
    board = decided(served, "p1", ["left/R1"], [])
    with served.database.writing() as connection:
        connection.execute(insert(unit_serial).values(serial="SN7", board_id=board.id))

    assert len(exported(served)) == 1
    assert served.operator.post("/api/v1/escapes", json={"serial": "SN7", "refdes": "R1"}).status_code == 201
    assert exported(served) == set()


def inspected(served, key, side, *parts):
    """Decide a board of serial S1: its first part is OK, the others are calls."""
    assert hand_in(served.feeder, key, dict.fromkeys(parts, "A"), serial="S1", side=side).status_code == 202
    decided(served, key, parts[:1], parts[1:])


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"refdes": "R1"}, {(2, "R2")}),  # of the other side, and of the test before the newest
        ({"refdes": "r1", "component": "100nF 0402"}, {(2, "R2")}),  # as the other test spells them
        ({"component": "100nF 0402"}, set()),  # nobody knows which part it is
        ({"refdes": "R9"}, {(1, "R1"), (2, "R2"), (3, "R1")}),
    ],
)
@pytest.mark.parametrize("is_early", [False, True])
def test_an_escape_is_about_all_boards_of_its_serial(served, said, left, is_early):
    """Also where it was reported before they were decided."""
    report = {"serial": "S1", **said}
    if is_early:
        assert served.operator.post("/api/v1/escapes", json=report).status_code == 201
    for key, side, part in (("k1", "top", "R1"), ("k2", "bottom", "R2"), ("k3", "top", "R1")):
        inspected(served, key, side, part)
    if not is_early:
        assert len(exported(served)) == 3
        assert served.operator.post("/api/v1/escapes", json=report).status_code == 201
    assert exported(served) == left


def test_a_false_call_that_a_later_test_contradicts_is_no_good_part(served):
    inspected(served, "k1", "top", "R1", "R5", "R6")
    for id, outcome in ((1, "false call"), (2, "confirmed")):
        say(served.operator, id, outcome)
    assert exported(served) == {(1, "R1"), (1, "R5"), (1, "R6")}
    for refdes in ("R5", "R6"):
        served.operator.post("/api/v1/escapes", json={"serial": "S1", "refdes": refdes})
    assert exported(served) == {(1, "R1"), (1, "R6")}


NEW = TINY.replace("body-c: {kind", "body-d: {kind").replace("inspect: body-c", "inspect: body-d")
ALL = ("P1", "P2", "P3", "P4")


def whole_in(served, layout, number, *, is_good, version=1):
    """Hand a whole board in, on which P4 is good or bad, and the others are good."""
    light = ALL if is_good else ALL[:3]
    put(served.feeder, f"k{number}", "top", whole_boards.png(picture_of(layout, light)))
    body = {"recipe": "whole", "version": version, "whole": "top", "serial": f"SN{number}"}
    answer = served.feeder.post(f"/api/v1/boards/k{number}", json=body)
    assert answer.status_code == 202, answer.text
    return state_of(served.database, answer.json()["board"])


def verified(served, tiny, layout, number):
    """Let a line decide so many boards, of which every second has a bad P4, and a person confirm each call."""
    handed_in = [whole_in(served, layout, index, is_good=index % 2 == 0) for index in range(number)]
    with deciding(served.gate.config, served.database, quick_opener(tiny, RedDevice())):
        eventually(lambda: all(state_of(served.database, one.id).verdict is not None for one in handed_in))
    while (call := served.operator.post("/api/v1/calls/next")).status_code == 200:
        path, tag = f"/api/v1/calls/{call.json()['call']}/verification", call.headers["etag"]
        word = {"outcome": Outcome.CONFIRMED}
        assert served.operator.post(path, json=word, headers={"If-Match": tag}).status_code == 201
    assert {state_of(served.database, one.id).state for one in handed_in} == {BoardState.VERIFIED}


def test_parts_of_whole_boards_are_exported_as_the_experts_saw_them(served, tiny):
    layout = layout_of(WHOLE)
    activated(served.database, TINY, name="whole", whole=WHOLE)
    verified(served, tiny, layout, 2)
    answer = served.engineer.post("/api/v1/exports", json={}).json()
    assert answer["counts"]["body-c"] == {"bad": 1, "ok": 1}
    assert answer["left_out"] == {}
    (bad,) = Path(answer["folder"], "body-c/bad").iterdir()
    site = next(site for site in layout.sites if site.name == "P4")
    seen = the(crop(picture_of(layout, ALL[:3]), site, truth(layout, POSE)[0]))
    exported = np.asarray(Image.open(io.BytesIO(bad.read_bytes())))
    assert exported.shape == seen.shape
    assert np.abs(exported.astype(int) - seen).mean() < 3  # the line finds the board a little beside the truth
    rows = json.loads(Path(answer["manifest"]).read_text())["pictures"]
    assert {len(row["place"]["polygon"]) for row in rows} == {4}
    assert [row["call"] for row in rows if row["outcome"]] == [1]


@pytest.mark.slow
def test_an_expert_that_learned_from_verified_boards_decides_the_next_boards(
    tmp_path, sqlite_template, own_tiny, tiny, call
):
    settings = {"store": own_tiny[1], "memory": "60MB", "profile": "none"}
    config = config_of(tmp_path, line=settings, drain_s=20)
    shutil.copy(sqlite_template, tmp_path / "serve.db")
    database, layout = open_database(config.database_url), layout_of(WHOLE)
    activated(database, TINY, name="whole", whole=WHOLE)
    with serving(config, database) as served:
        verified(served, tiny, layout, 24)
        folder = Path(served.engineer.post("/api/v1/exports", json={}).json()["folder"])
        rules = tmp_path / "tiny.yaml"
        rules.write_text(NEW)
        options = ("--board", rules, "--epochs", 6, "--batch", 8, "--threads", 1, "--lr", 0.01, "--store", own_tiny[1])
        said = call("train", "tiny/body-d", "--data", folder / "body-c", *options, command=experts_command)
        assert said.status == 0, said.words
        posted = served.engineer.post("/api/v1/recipes/whole", json={"rules": NEW, "whole": WHOLE})
        assert posted.status_code == 201, posted.text
        version = posted.json()["version"]
        path = f"/api/v1/recipes/whole/{version}"
        overlay = served.engineer.post(f"{path}/overlay", content=whole_boards.png(picture_of(layout, ALL)))
        seen = {"picture": overlay.headers["x-picture-sha256"], "proof": overlay.headers["x-overlay-proof"]}
        assert served.engineer.post(f"{path}/confirmation", json=seen).status_code == 201
        asked = served.engineer.post(f"{path}/activate")
        good, bad = (whole_in(served, layout, 101 - ok, is_good=ok, version=version) for ok in (True, False))
        station = Station(config, database)
        while any(state_of(database, one.id).verdict is None for one in (good, bad)):
            station.step()
        station.close()
        activation = served.engineer.get(asked.headers["location"]).json()
    assert (version, activation["state"]) == (2, "active"), activation
    with database.reading() as connection:
        passed = {one.refdes: one.findings[0] for one in board_rows.unpack(board_rows.findings_of(connection, good.id))}
        called = {one.refdes: one for one in call_rows.of_board(connection, bad.id)}
    assert (passed["P4"]["expert"], passed["P4"]["label"]) == ("body-d", "ok")
    assert (called["P4"].expert, called["P4"].label, called["P4"].verdict) == ("body-d", "bad", Verdict.NG)
    database.close()
