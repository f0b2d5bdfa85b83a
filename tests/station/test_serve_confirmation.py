"""A recipe that cuts whole boards is activated once a person has seen that each crop lies on its part."""

import hashlib
from contextlib import closing

import numpy as np
import pytest
from serve_rows import the
from serving import activated, put, signed_in
from sqlalchemy.exc import IntegrityError
from stations import accept_request, deciding, quick_opener, state_of
from tiny_line import TINY
from waiting import eventually
from whole_boards import BOARD, WHOLE, RedDevice, layout_of, picture_of, png, whole_of

from coe.core import Verdict
from coe.errors import ConfigError
from coe.serve.clock import now_us
from coe.serve.database import audit, call_rows, recipe_versions, row_types
from coe.serve.database.tables import Activation
from coe.serve.enums import ActivationState, CallReason, Role
from coe.serve.recipe_content import WholeBoard

CONTENT = {"rules": TINY, "whole": WHOLE, "within_s": None, "terminations": {}, "parts": {}}
PATH = "/api/v1/recipes/new/1"


def staged(served, **changes):
    """Add a version of the recipe `new`, and return its number."""
    return served.database.write(recipe_versions.add, "new", {**CONTENT, **changes}, by="ann", now_us=now_us()).version


def refuse(whole):
    raise ConfigError("line 3 is torn")


def overlay(client, path=PATH):
    return client.post(f"{path}/overlay", content=png(BOARD), params={"side": 300})


def proof_of(answer):
    return {"picture": answer.headers["x-picture-sha256"], "proof": answer.headers["x-overlay-proof"]}


def test_without_a_word_on_its_placements_a_version_is_not_activated(served):
    staged(served)
    refused = served.engineer.post(f"{PATH}/activate")
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "nobody has confirmed the placements of version 1 of recipe 'new'",
    )
    assert "/recipes/new/1" in refused.json()["way_out"]
    drawn = overlay(served.engineer)
    assert drawn.headers["x-picture-sha256"] == hashlib.sha256(png(BOARD)).hexdigest()
    assert served.engineer.post(f"{PATH}/activate").status_code == 409, "to draw is not to confirm"
    said = served.engineer.post(f"{PATH}/confirmation", json=proof_of(drawn))
    assert (said.status_code, said.json()["by"]) == (201, "engineer")
    assert served.engineer.post(f"{PATH}/activate").status_code == 202
    with served.database.reading() as connection:
        entry = next(one for one in audit.newest(connection) if one.action == "confirm")
    assert (entry.actor, entry.about, entry.detail) == (
        "engineer",
        "recipe new 1",
        {"picture": drawn.headers["x-picture-sha256"]},
    )


def test_the_first_word_stays_and_nothing_changes_it(served):
    staged(served)
    seen = proof_of(overlay(served.engineer))
    first = served.engineer.post(f"{PATH}/confirmation", json=seen).json()
    assert served.engineer.post(f"{PATH}/confirmation", json=seen).json() == first
    with pytest.raises(IntegrityError), served.database.writing() as connection:
        connection.exec_driver_sql("UPDATE confirmation SET confirmed_by = 'bob'")


def test_a_word_holds_for_versions_with_the_same_placements_alone(served):
    staged(served)
    assert served.engineer.post(f"{PATH}/confirmation", json=proof_of(overlay(served.engineer))).status_code == 201
    retrained = staged(served, terminations={"A": 2})
    moved = staged(served, whole={**WHOLE, "parts": WHOLE["parts"].replace("5", "6")})
    answers = [served.engineer.post(f"/api/v1/recipes/new/{number}/activate") for number in (retrained, moved)]
    assert [answer.status_code for answer in answers] == [202, 409]


def test_placements_that_another_version_of_the_service_reads_elsewhere_are_confirmed_anew(served, monkeypatch):
    activated(served.database, TINY, name="new", whole=WHOLE)
    assert served.engineer.post(f"{PATH}/confirmation", json=proof_of(overlay(served.engineer))).status_code == 201
    put(served.feeder, "b1", "top", png(BOARD))
    with monkeypatch.context() as other, closing(signed_in(served, Role.ENGINEER)) as person:
        other.setattr(WholeBoard, "reading", "f" * 64)
        for path in (f"{PATH}/activate", "/api/v1/boards/b1"):
            refused = served.engineer.post(path, json={"recipe": "new", "whole": "top"} if "boards" in path else None)
            assert (refused.status_code, "elsewhere" in refused.text) == (409, True), path
        assert "elsewhere" in person.get("/recipes/new/1").text
        seen = proof_of(overlay(served.engineer))
        assert served.engineer.post(f"{PATH}/confirmation", json=seen).status_code == 201
        assert served.engineer.post(f"{PATH}/activate").status_code == 202
    assert served.engineer.post(f"{PATH}/activate").status_code == 202
    with monkeypatch.context() as other:
        for name in ("reading", "layout"):
            other.setattr(WholeBoard, name, property(refuse))
        refused = served.engineer.post("/api/v1/boards/b1", json={"recipe": "new", "whole": "top"})
        assert (refused.status_code, refused.json()["detail"]) == (422, "line 3 is torn"), "the reason itself is told"
    bottom = {**WHOLE, "parts": WHOLE["parts"].replace("5,", "5.0,")}
    assert WholeBoard.model_validate(bottom).reading == WholeBoard.model_validate(WHOLE).reading


def test_only_an_overlay_that_was_drawn_for_this_version_can_be_confirmed(served):
    staged(served)
    staged(served, terminations={"A": 2})
    seen = proof_of(overlay(served.engineer, "/api/v1/recipes/new/2"))
    for wrong in (seen, {**seen, "picture": "0" * 64}, {**seen, "proof": "0" * 64}):
        assert served.engineer.post(f"{PATH}/confirmation", json=wrong).status_code == 409
    for form in ({}, {**seen, "proof": "x"}, {**seen, "by": "bob"}):
        assert served.engineer.post(f"{PATH}/confirmation", json=form).status_code == 422
    own = proof_of(overlay(served.engineer))
    assert served.operator.post(f"{PATH}/confirmation", json=own).status_code == 403
    assert served.engineer.post("/api/v1/recipes/tiny/1/confirmation", json=own).status_code == 409
    assert served.engineer.post("/api/v1/recipes/new/9/confirmation", json=own).status_code == 404


def test_the_overlay_of_a_board_that_is_not_registered_proves_nothing(served):
    staged(served)
    blank = png(np.full((400, 480, 3), 200, np.uint8))
    answer = served.engineer.post(f"{PATH}/overlay", content=blank, params={"side": 300})
    assert (answer.status_code, "x-overlay-proof" in answer.headers) == (200, False)


def test_a_recipe_of_single_pictures_needs_no_word(served):
    assert served.engineer.post("/api/v1/recipes/tiny/1/activate").status_code == 202


def test_the_page_of_a_version_says_who_confirmed_it(served):
    staged(served)
    with closing(signed_in(served, Role.ENGINEER)) as person:
        before, listed = person.get("/recipes/new/1").text, person.get("/recipes").text
        served.engineer.post(f"{PATH}/confirmation", json=proof_of(overlay(served.engineer)))
        after = person.get("/recipes/new/1").text
        assert "First confirm the placements" in before
        assert "data-post" not in before
        assert "not confirmed" in listed
        assert "by engineer" in after
        assert f'data-post="{PATH}/activate"' in after
        assert person.get("/recipes/new/7").status_code == 404
    with closing(signed_in(served, Role.OPERATOR)) as person:
        assert "board-picture" not in person.get("/recipes/new/1").text


def moved_by(served, name="new"):
    """Stage a version that cuts boards in another way than the active one; return its number."""
    activated(served.database, TINY, name=name, whole=WHOLE)
    return staged(served, whole={**WHOLE, "parts": WHOLE["parts"].replace("5", "6")})


def test_no_feeder_names_a_version_that_cannot_be_activated(served):
    version = moved_by(served)
    put(served.feeder, "b1", "top", png(BOARD))
    body = {"recipe": "new", "version": version}
    for said in ({"whole": "top"}, {"views": {"top": {"refdes": "P1", "component": "C"}}}):
        assert served.feeder.post("/api/v1/boards/b1", json={**body, **said}).status_code == 409
    assert served.engineer.post(f"/api/v1/recipes/new/{version}/activate").status_code == 409
    assert served.feeder.post("/api/v1/boards/b1", json={"recipe": "new", "whole": "top"}).status_code == 202


def test_a_line_opens_no_version_that_cannot_be_activated(served, tiny):
    """A board and an activation that got into the database in another way."""
    version, config, database = moved_by(served), served.gate.config, served.database
    with database.writing() as connection:
        refused = the(recipe_versions.version(connection, "new", version))
        asked = recipe_versions.ask_activation(connection, refused.id, by="ann", now_us=now_us())
    board = accept_request(config, database, refused.id, {"top": png(BOARD)}, {"whole": "top"})
    with deciding(config, database, quick_opener(tiny, RedDevice())):
        eventually(lambda: state_of(database, board.id).verdict is not None)
        with database.reading() as connection:
            eventually(lambda: recipe_versions.asked(connection) == [])
    assert state_of(database, board.id).verdict is Verdict.REVIEW
    with database.reading() as connection:
        answered = row_types.get(connection, Activation, asked.id)
        assert {call.reason for call in call_rows.of_board(connection, board.id)} == {CallReason.FAILED}
    assert answered.state is ActivationState.FAILED


def test_placements_on_which_a_board_may_lie_wrong_are_not_confirmed_in_silence(served):
    two = {"diameter": 1, "search": 2.5, "at": {"F1": [1.5, 1.5], "F2": [18.5, 14.5]}}
    whole, way = whole_of(fiducials=two), "turned by 180 degrees"
    staged(served, whole=whole)
    (warning,) = served.engineer.get(PATH).json()["warnings"]
    assert way in warning
    with closing(signed_in(served, Role.ENGINEER)) as person:
        page = person.get("/recipes/new/1").text
    assert f'data-blind-to="{way}"' in page
    drawn = served.engineer.post(f"{PATH}/overlay", content=png(picture_of(layout_of(whole), [])), params={"side": 300})
    seen = proof_of(drawn)
    for read in ([], ["mirrored"], [way, "mirrored"]):
        refused = served.engineer.post(f"{PATH}/confirmation", json={**seen, "blind_to": read})
        assert refused.status_code == 409
        assert way in refused.json()["detail"]
    assert served.engineer.post(f"{PATH}/activate").status_code == 409
    assert served.engineer.post(f"{PATH}/confirmation", json={**seen, "blind_to": [way]}).status_code == 201
    with served.database.reading() as connection:
        entry = next(one for one in audit.newest(connection) if one.action == "confirm")
    assert entry.detail["blind_to"] == [way]
