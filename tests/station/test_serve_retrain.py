"""A line learns from its own calls: whole boards are verified and exported, and the expert trained on them decides."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from drawn_boards import truth
from PIL import Image
from serve_rows import the
from serving import activated, config_of, put, serving
from stations import deciding, quick_opener, state_of
from tiny_line import TINY
from waiting import eventually
from whole_boards import POSE, WHOLE, RedDevice, layout_of, picture_of, png

from coe.cli import experts_command
from coe.core import Verdict
from coe.placement import crop
from coe.serve.database import board_rows, call_rows
from coe.serve.database.connecting import open_database
from coe.serve.enums import BoardState, Outcome
from coe.serve.worker.station import Station

NEW = TINY.replace("body-c: {kind", "body-d: {kind").replace("inspect: body-c", "inspect: body-d")
ALL = ("P1", "P2", "P3", "P4")


def hand_in(served, layout, number, *, is_good, version=1):
    """Hand a whole board in, on which P4 is good or bad, and the others are good."""
    light = ALL if is_good else ALL[:3]
    put(served.feeder, f"k{number}", "top", png(picture_of(layout, light)))
    body = {"recipe": "whole", "version": version, "whole": "top", "serial": f"SN{number}"}
    answer = served.feeder.post(f"/api/v1/boards/k{number}", json=body)
    assert answer.status_code == 202, answer.text
    return state_of(served.database, answer.json()["board"])


def verified(served, tiny, layout, number):
    """Let a line decide so many boards, of which every second has a bad P4, and a person confirm each call."""
    handed_in = [hand_in(served, layout, index, is_good=index % 2 == 0) for index in range(number)]
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
        overlay = served.engineer.post(f"{path}/overlay", content=png(picture_of(layout, ALL)))
        seen = {"picture": overlay.headers["x-picture-sha256"], "proof": overlay.headers["x-overlay-proof"]}
        assert served.engineer.post(f"{path}/confirmation", json=seen).status_code == 201
        asked = served.engineer.post(f"{path}/activate")
        good, bad = (
            hand_in(served, layout, number, is_good=is_good, version=version)
            for number, is_good in ((100, True), (101, False))
        )
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
