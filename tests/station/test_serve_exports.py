"""Exports: labelled folders that training takes, and that hold what people said."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from serve_rows import decision, ng, the
from serving import hand_in, png, put
from sqlalchemy import insert

from coe.core import Verdict
from coe.results import marks
from coe.serve.clock import now_us
from coe.serve.database import audit, board_rows, views
from coe.serve.database.board_rows import GoodComponent
from coe.serve.database.tables import escape, unit_serial
from coe.serve.enums import Outcome
from coe.serve.retention import sweep


def with_answers(served):
    """Decide a board with four calls, of which three are answered, and two good parts."""
    parts = ("R1", "R2", "R3", "R4", "R8", "R9")
    hand_in(served.feeder, "k1", dict.fromkeys(parts, "A"))
    with served.database.writing() as connection:
        board = the(board_rows.of_key(connection, "k1"))
        view_of = {view.name: view.id for view in views.of_board(connection, "k1")}
        rows = [{"expert": "body", "label": "good", "score": 0.99}]
        calls = [ng(refdes, view_id=view_of[refdes]) for refdes in parts[:4]]
        good = [GoodComponent(refdes, "A", view_of[refdes], None, rows) for refdes in parts[4:]]
        board_rows.decide(connection, decision(board, *calls, fine=good, at_us=now_us()))
    words = ({"outcome": "confirmed"}, {"outcome": "false call"}, {"outcome": "accepted", "label": "chipped"})
    for id, word in enumerate(words, 1):
        path = f"/api/v1/calls/{id}/verification"
        assert served.operator.post(path, json=word, headers={"If-Match": '"0"'}).status_code == 201


def listed(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != marks.MARKS)
    return sorted(str(path.relative_to(folder)) for path in files)


def test_an_export_has_a_folder_for_each_expert_and_label(served):
    with_answers(served)
    answer = served.engineer.post("/api/v1/exports", json={"good": 1})
    assert answer.status_code == 201
    folder = Path(answer.json()["folder"])
    with served.database.reading() as connection:
        last = the(views.named(connection, "k1", "R8"))
        (entry, *_) = audit.newest(connection)
    assert listed(folder) == [
        "body/chipped/call-3.png",
        "body/cracked/call-1.png",
        "body/good/call-2.png",
        f"body/good/good-{last.id}.png",
        "manifest.json",
    ]
    assert (folder / "body/cracked/call-1.png").read_bytes() == png(0)
    assert answer.json()["counts"] == {"body": {"chipped": 1, "cracked": 1, "good": 2}}
    said = {mark.image: (mark.expert, mark.label, mark.by) for mark in marks.read(folder)}
    assert said["body/cracked/call-1.png"] == ("body", "cracked", "operator"), "`coe-experts learn` takes it"
    assert all((folder / image).is_file() for image in said)
    manifest = json.loads((folder / "manifest.json").read_text())
    first = manifest["pictures"][0]
    assert (first["outcome"], first["refdes"], first["verified_by"]) == (Outcome.CONFIRMED, "R1", "operator")
    assert (entry.action, entry.detail["pictures"]) == ("export", 4)


def test_labels_that_cannot_name_a_folder_are_left_out_and_counted(served):
    with_answers(served)
    word = {"outcome": "confirmed", "label": "../../etc"}
    served.operator.post("/api/v1/calls/4/verification", json=word, headers={"If-Match": '"0"'})
    body = served.engineer.post("/api/v1/exports", json={}).json()
    assert body["left_out"] == {"nobody said a label that can name a folder": 1}
    assert not [path for path in listed(served.gate.config.data) if "etc" in path]


def test_a_false_call_of_an_expert_without_good_parts_is_left_out(served):
    with_answers(served)
    with served.database.writing() as connection:
        connection.exec_driver_sql("UPDATE board SET findings = NULL")
    body = served.engineer.post("/api/v1/exports", json={}).json()
    assert body["counts"] == {"body": {"chipped": 1, "cracked": 1}}
    assert sum(body["left_out"].values()) == 1


@pytest.mark.parametrize("outcome", [Outcome.CONFIRMED, Outcome.ACCEPTED])
def test_a_defect_is_never_exported_under_a_label_that_passes(served, outcome, monkeypatch):
    files, left_out = [], []
    for number, (expert, label, said, folder) in enumerate(
        [
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
        ],
        1,
    ):
        hand_in(served.feeder, f"k{number}", {"R1": "A"})
        with served.database.writing() as connection:
            board = the(board_rows.of_key(connection, f"k{number}"))
            (view,) = views.of_board(connection, f"k{number}")
            doubt = replace(ng("R1", Verdict.REVIEW, view.id), expert=expert, label=label)
            board_rows.decide(connection, decision(board, doubt, fine=[], at_us=now_us()))
        word = {"outcome": outcome, "label": said}
        served.operator.post(f"/api/v1/calls/{number}/verification", json=word, headers={"If-Match": '"0"'})
        if folder is None:
            left_out.append(number)
        else:
            files.append(f"{folder}/call-{number}.png")
    saved = set[int]()
    monkeypatch.setattr(os, "fsync", lambda number: saved.add(os.fstat(number).st_ino))
    body = served.engineer.post("/api/v1/exports", json={}).json()
    assert saved >= {path.stat().st_ino for path in Path(body["folder"]).rglob("*")}
    manifest = json.loads(Path(body["manifest"]).read_text())
    assert listed(Path(body["folder"])) == sorted([*files, "manifest.json"])
    assert sum(body["left_out"].values()) == len(left_out)
    assert sorted(one["call"] for one in manifest["left_out_calls"]) == left_out


@pytest.mark.parametrize(("where", "left"), [({"refdes": "R8"}, 1), ({"component": "A"}, 0), ({}, 0)])
def test_a_part_that_is_reported_as_an_escape_is_no_good_part(served, where, left):
    with_answers(served)
    with served.database.writing() as connection:
        board = the(board_rows.of_key(connection, "k1"))
        row = {"refdes": "", "component": "", "serial": "", "reported_us": now_us(), "reported_by": "ann", **where}
        connection.execute(insert(escape).values(board_id=board.id, **row))
    folder = Path(served.engineer.post("/api/v1/exports", json={"days": 1}).json()["folder"])
    assert len([path for path in listed(folder) if "/good-" in path]) == left


def test_the_escape_of_a_unit_is_no_good_part_of_its_panel(served):
    put(served.feeder, "p1", "one")
    shown = {"one": {"refdes": "left/R1", "component": "A"}}
    said = {"recipe": "tiny", "serial": "P1", "views": shown}
    assert served.feeder.post("/api/v1/boards/p1", json=said).status_code == 202
    with served.database.writing() as connection:
        board = the(board_rows.of_key(connection, "p1"))
        connection.execute(insert(unit_serial).values(serial="SN7", board_id=board.id))
        (view,) = views.of_board(connection, "p1")
        finding = {"expert": "body", "label": "ok", "score": 0.99}
        fine = GoodComponent("left/R1", "A", view.id, None, [finding])
        board_rows.decide(connection, decision(board, fine=[fine], at_us=now_us()))

    def good():
        folder = Path(served.engineer.post("/api/v1/exports", json={"days": 1}).json()["folder"])
        return [path for path in listed(folder) if "/good-" in path]

    assert len(good()) == 1
    assert served.operator.post("/api/v1/escapes", json={"serial": "SN7", "refdes": "R1"}).status_code == 201
    assert good() == []


def inspected(served, key, side, *parts):
    """Decide a board of serial S1: its first part is OK, the others are calls."""
    assert hand_in(served.feeder, key, dict.fromkeys(parts, "A"), serial="S1", side=side).status_code == 202
    with served.database.writing() as connection:
        board = the(board_rows.of_key(connection, key))
        view_of = {view.name: view.id for view in views.of_board(connection, key)}
        finding = {"expert": "body", "label": "ok", "score": 0.99}
        fine = GoodComponent(parts[0], "A", view_of[parts[0]], None, [finding])
        opened = [ng(refdes, view_id=view_of[refdes]) for refdes in parts[1:]]
        board_rows.decide(connection, decision(board, *opened, fine=[fine], at_us=now_us()))


def exported(served):
    manifest = served.engineer.post("/api/v1/exports", json={"days": 1, "good": 9}).json()["manifest"]
    return {(one["board"], one["refdes"]) for one in json.loads(Path(manifest).read_text())["pictures"]}


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
        path = f"/api/v1/calls/{id}/verification"
        served.operator.post(path, json={"outcome": outcome}, headers={"If-Match": '"0"'})
    assert exported(served) == {(1, "R1"), (1, "R5"), (1, "R6")}
    for refdes in ("R5", "R6"):
        served.operator.post("/api/v1/escapes", json={"serial": "S1", "refdes": refdes})
    assert exported(served) == {(1, "R1"), (1, "R6")}


def test_operators_do_not_export(served):
    assert served.operator.post("/api/v1/exports", json={}).status_code == 403


def test_no_picture_goes_while_a_call_of_its_board_is_open(served):
    hand_in(served.feeder, "k1", {"R1": "A", "R8": "A"})
    with served.database.writing() as connection:
        board = the(board_rows.of_key(connection, "k1"))
        board_rows.decide(connection, decision(board, ng("R1"), ng("R8"), at_us=now_us()))
    retention = served.gate.config.retention
    far_us = now_us() + 10**16
    for open_calls in (2, 1):
        assert sweep(served.database, served.gate.pictures, retention, far_us) == 0
        path = f"/api/v1/calls/{3 - open_calls}/verification"
        served.operator.post(path, json={"outcome": "false call"}, headers={"If-Match": '"0"'})
    assert sweep(served.database, served.gate.pictures, retention, far_us) == 2
    assert served.operator.get("/api/v1/calls/1/picture").status_code == 404
