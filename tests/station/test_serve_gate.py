"""The gate over real HTTP: boards come in, once and whole, and whoever waits is told."""

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from serve_rows import NOON, decide, ng
from serving import activated, config_of, hand_in, png, problem, put, serving
from tiny_line import TINY

from coe.serve.clock import SECOND_US, now_us
from coe.serve.database import audit, board_rows, event_log, fault_log, recipe_versions, states, views
from coe.serve.database.connecting import Database
from coe.serve.database.tables import NewFault
from coe.serve.enums import ActivationState, BoardState, EventKind, FaultKind, Intake, LineState, Process, Subject
from coe.store.store import Store


def the_board(served, key="k1"):
    return served.database.read(board_rows.of_key, key)


def test_the_address_is_told_once_it_answers(sqlite_database, tmp_path, capfd):
    with serving(config_of(tmp_path), sqlite_database) as served:
        assert f"test: {served.address}, data in {tmp_path}\n" in capfd.readouterr().err


def test_a_board_is_accepted_once_its_pictures_and_its_row_are_on_the_disk(served):
    scan = "\x1d\x04 S\x1dN1 \r\n\0\0"  # as of a code with fields, in a text of a fixed length
    answer = hand_in(served.feeder, "k1", {"R1": "A", "R2": "B"}, serial=scan, within_s=9, work_order="W")
    assert answer.status_code == 202
    board = the_board(served)
    assert answer.json()["board"] == board.id
    assert answer.headers["location"] == f"/api/v1/boards/{board.id}"
    assert (board.serial, board.work_order, board.fed_by) == ("SN1", "W", "feeder")
    for serial in ("SN1  ", scan.rstrip("\0\r\n")):
        found = served.operator.get("/api/v1/boards", params={"serial": serial}).json()
        assert [one["board"] for one in found["boards"]] == [board.id]
    assert board.due_us == board.accepted_us + 9_000_000
    with served.database.reading() as connection:
        for view in views.of_board(connection, "k1"):
            content = served.gate.pictures.path(view.file).read_bytes()
            assert hashlib.sha256(content).hexdigest() == view.sha256


def test_the_same_key_and_body_get_the_same_answer_and_another_body_is_refused(served):
    first = hand_in(served.feeder, "k1", {"R1": "A"})
    again = hand_in(served.feeder, "k1", {"R1": "A"})
    assert (again.status_code, again.json()) == (202, first.json())
    other = hand_in(served.feeder, "k1", {"R1": "A"}, serial="SN2")
    assert (other.status_code, other.json()["type"]) == (409, "urn:coe:problem:conflict")
    assert served.database.read(board_rows.count_undecided) == 1


def test_eight_clients_with_one_key_make_one_board(served):
    put(served.feeder, "k1", "v")
    body = {"recipe": "tiny", "views": {"v": {"refdes": "R1", "component": "A"}}}
    with ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(served.feeder.post, "/api/v1/boards/k1", json=body) for _ in range(8)]
    assert {answer.result().json()["board"] for answer in answers} == {the_board(served).id}


def test_a_picture_may_be_replaced_until_its_board_is_handed_in(served):
    assert put(served.feeder, "k1", "v", png(1)).status_code == 201
    assert put(served.feeder, "k1", "v", png(1)).status_code == 200
    assert put(served.feeder, "k1", "v", png(2)).status_code == 201
    files = [file for file in served.gate.pictures.folder.glob("*/*") if file.is_file()]
    assert [file.read_bytes() for file in files] == [png(2)]
    body = {"recipe": "tiny", "views": {"v": {"refdes": "R1", "component": "A"}}}
    assert served.feeder.post("/api/v1/boards/k1", json=body).status_code == 202
    assert put(served.feeder, "k1", "v", png(2)).status_code == 200
    assert put(served.feeder, "k1", "v", png(3)).status_code == 409
    assert put(served.feeder, "k1", "w", png(3)).status_code == 409


def test_what_the_service_cannot_use_is_refused_with_a_way_out(served):
    put(served.feeder, "k1", "v")
    for change, sentence in (
        ({"recipe": "demo"}, "recipe 'demo' has no active version"),
        ({"version": 7}, "recipe 'tiny' has no version 7"),
        ({"views": {"v": {"refdes": "R1", "component": "AA"}}}, "no component 'AA'"),
        ({"views": {"w": {"refdes": "R1", "component": "A"}}}, "view 'w' was not submitted"),
        ({"views": {}}, "views: "),
        ({"view": {}}, "'view' is not a key; did you mean 'views'?"),
        ({"within_s": -1}, "within_s: "),
        ({"serial": "a\x1b[2J"}, "hidden characters"),
        ({"serial": "a" * 201}, "serial: "),
    ):
        body = {"recipe": "tiny", "views": {"v": {"refdes": "R1", "component": "A"}}, **change}
        assert sentence in problem(served.feeder.post("/api/v1/boards/k1", json=body), 422, "invalid")["detail"]


def test_one_picture_cannot_stand_for_two_components_nor_for_none(served):
    """The second component would be OK, and nobody would have seen it."""
    for view, seed in (("left", 1), ("right", 1), ("other", 2)):
        put(served.feeder, "k1", view, png(seed))
    named = {"left": ("R1", "A"), "other": ("R2", "A"), "right": ("R3", "B")}
    views = {view: {"refdes": refdes, "component": component} for view, (refdes, component) in named.items()}
    refused = problem(served.feeder.post("/api/v1/boards/k1", json={"recipe": "tiny", "views": views}), 422, "invalid")
    assert all(name in refused["detail"] for name in ("'left' ('R1')", "'right' ('R3')"))
    put(served.feeder, "k1", "right", png(3))
    named = {"recipe": "tiny", "views": {view: shown for view, shown in views.items() if view != "other"}}
    assert "'other'" in problem(served.feeder.post("/api/v1/boards/k1", json=named), 422, "invalid")["detail"]
    assert served.feeder.post("/api/v1/boards/k1", json={"recipe": "tiny", "views": views}).status_code == 202


def test_a_client_waits_for_the_decision(served):
    path = hand_in(served.feeder, "k1", {"R1": "A"}).headers["location"]
    assert served.feeder.get(path, params={"wait": 0.05}).json()["state"] == "accepted"
    timer = threading.Timer(0.1, decide, (served.database, "k1", ng("R1")))
    timer.start()
    answer = served.feeder.get(path, params={"wait": 20, "good": 1}).json()
    timer.join()
    assert (answer["state"], answer["verdict"], answer["calls"][0]["refdes"]) == ("decided", "NG", "R1")
    assert answer["good"][0]["refdes"] == "R9"


def test_a_board_can_be_taken_back_until_it_is_decided(served):
    path = hand_in(served.feeder, "k1", {"R1": "A"}).headers["location"]
    assert served.feeder.delete(path).status_code == 204
    assert the_board(served).state is BoardState.ABORTED
    assert served.feeder.delete(path).status_code == 409
    assert served.database.read(audit.newest)[0].action == "abort"


def lines_of(served, wanted, **options):
    lines = []
    with served.operator.stream("GET", "/api/v1/events", **options) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith(("id:", "event:")):
                lines.append(line)
            if len(lines) == wanted:
                break
    return lines


def append(served, number):
    served.database.write(event_log.append, EventKind.STATE_CHANGED, NOON, {"n": number})


def test_a_client_that_comes_back_gets_the_events_that_it_missed(served):
    for number in range(3):
        append(served, number)
    timer = threading.Timer(0.1, append, (served, 3))
    timer.start()
    lines = lines_of(served, 6, headers={"Last-Event-ID": "1"})
    timer.join()
    assert lines == ["id: 2", "event: state.changed", "id: 3", "event: state.changed", "id: 4", "event: state.changed"]


def test_the_kind_of_an_event_stands_beside_that_of_its_fault(served):
    served.database.write(fault_log.note, NewFault(Process.WORKER, FaultKind.CLOCK, "the clock went back"), NOON)
    with served.operator.stream("GET", "/api/v1/events", params={"after": 0}) as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("data:"))
    told = json.loads(line.removeprefix("data:"))
    assert (told["kind"], told["fault_kind"]) == ("fault.raised", "clock")


def test_clients_see_events_of_other_processes_as_they_happen(served):
    with ThreadPoolExecutor(20) as clients:
        seen = [clients.submit(lines_of, served, 4, params={"after": 0}) for _ in range(20)]
        append(served, 1)
        append(served, 2)
    told = ["id: 1", "event: state.changed", "id: 2", "event: state.changed"]
    assert [one.result() for one in seen] == [told] * 20


def test_a_recipe_is_checked_staged_and_activated(served):
    rules = "board: tiny\nexperts: {}\n"
    answer = served.engineer.post("/api/v1/recipes/tiny", json={"rules": rules})
    assert (answer.status_code, "tiny.yaml:" in answer.json()["detail"]) == (422, True)
    answer = served.engineer.post("/api/v1/recipes/tiny/1/activate")
    assert (answer.status_code, answer.json()["state"]) == (202, "asked")
    activation = answer.headers["location"]
    with served.database.writing() as connection:
        (asked,) = recipe_versions.asked(connection)
        recipe_versions.answer(connection, asked.id, ActivationState.FAILED, now_us=NOON, reason="no weights")
    assert served.engineer.get(activation).json()["reason"] == "no weights"
    assert served.engineer.post("/api/v1/recipes/tiny/9/activate").status_code == 404
    assert served.operator.get("/api/v1/recipes").json()["recipes"] == [{"name": "tiny", "active": 1, "newest": 1}]


def with_store(served, folder):
    line = served.gate.config.line.model_copy(update={"store": folder})
    served.gate.config = served.gate.config.model_copy(update={"line": line})
    return Store(folder)


def test_a_recipe_with_an_unproven_expert_is_staged_with_a_warning(served, own_tiny):
    store = with_store(served, own_tiny[1])
    for why, told in (("", []), ("it sees nothing", ["expert 'joint' is unproven: it sees nothing"])):
        with store.changing("tiny/joint") as manifest:
            store.rewrite(manifest.model_copy(update={"unproven": why}))
        answer = served.engineer.post("/api/v1/recipes/tiny", json={"rules": f"{TINY}# {why}\n"})
        assert answer.status_code == 201
        said = answer.json().get("warnings", [])
        assert [sentence for sentence in said if "unproven" in sentence] == told
        assert any("exam" in sentence and "'joint'" in sentence for sentence in said)


def test_a_recipe_may_carry_a_calibration_and_one_that_lost_it_is_staged_with_a_warning(served, tiny):
    with_store(served, tiny[1])

    def post(**content):
        return served.engineer.post("/api/v1/recipes/new", json={"rules": TINY, **content})

    refused = post(calibration="board: tiny\nexperts: {body-x: {temperature: 2}}\n")
    assert (refused.status_code, "new.calibration.yaml:2" in refused.json()["detail"]) == (422, True)
    text = "board: tiny\nexperts: {body-a: {temperature: 2}}\n"
    assert post(calibration=text).status_code == 201
    content = served.engineer.get("/api/v1/recipes/new/1").json()["content"]
    assert content["calibration"] == text
    activated(served.database, name="new", **content)
    lost = post().json()
    assert lost["version"] == 2
    assert "calibration" in " ".join(lost["warnings"])


def test_a_draining_service_sends_new_boards_away_and_knows_old_ones(served):
    hand_in(served.feeder, "k1", {"R1": "A"})
    assert served.engineer.post("/api/v1/drain").json()["intake"] == "draining"
    refused = hand_in(served.feeder, "k2", {"R1": "A"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert hand_in(served.feeder, "k1", {"R1": "A"}).status_code == 202
    assert served.engineer.post("/api/v1/resume").json()["intake"] == "open"
    assert hand_in(served.feeder, "k2", {"R1": "A"}).status_code == 202
    served.limit(waiting_boards=2)
    assert hand_in(served.feeder, "k3", {"R1": "A"}).status_code == 503, "too many wait"


def test_ready_means_that_line_and_database_answer(served):
    assert served.nobody.get("/health/live").status_code == 200
    assert served.nobody.get("/health/ready").status_code == 503
    said_us, now = now_us(), served.gate.now_us
    with served.database.writing() as connection:
        states.beat(connection, Process.WORKER, pid=1, now_us=said_us, facts={})
        states.change(connection, Subject.LINE, LineState.WAITING, by="line", now_us=said_us)
    for silent_s, status in ((0, 200), (7, 200), (9, 503)):
        served.gate.now_us = lambda passed_s=silent_s: said_us + passed_s * SECOND_US
        assert served.nobody.get("/health/ready").status_code == status
    served.gate.now_us = now
    fault = NewFault(Process.WORKER, FaultKind.INSPECTOR_FAILED, "no expert 'body-x'", "tiny 1")  # the only recipe
    failed = served.database.write(fault_log.note, fault, now_us())
    answer = served.nobody.get("/health/ready")
    assert (answer.status_code, "body-x" in answer.text) == (503, False)  # it needs no key
    served.database.write(fault_log.clear, failed.id, by="worker", now_us=now_us())
    assert served.nobody.get("/health/ready").status_code == 200
    served.database.write(states.change, Subject.INTAKE, Intake.DRAINING, by="ann", now_us=now_us())
    assert served.nobody.get("/health/ready").status_code == 503


def test_a_gate_that_ends_lets_its_clients_go(served):
    listening = threading.Event()

    def listen():
        with served.operator.stream("GET", "/api/v1/events") as answer:
            for _ in answer.iter_lines():
                listening.set()

    client = threading.Thread(target=listen)
    client.start()
    assert listening.wait(10)
    served.server.should_exit = True
    client.join(10)
    assert not client.is_alive()


def test_a_request_that_lasts_longer_than_the_gate_is_told_that_it_ends(served, monkeypatch):
    begun, goes_on, writing = threading.Event(), threading.Event(), Database.writing

    def hang(database):
        begun.set()
        goes_on.wait()
        return writing(database)

    monkeypatch.setattr(Database, "writing", hang)
    served.server.config.timeout_graceful_shutdown = 1
    with ThreadPoolExecutor() as clients:
        try:
            asked = clients.submit(served.engineer.post, "/api/v1/drain")
            assert begun.wait(10)
            served.server.should_exit = True
            problem(asked.result(), 503, "draining")
        finally:
            goes_on.set()


def test_a_key_and_a_view_may_have_slashes(served):
    for key in ("P1/7", "100%2F/a b"):
        path = f"/api/v1/boards/{quote(key, safe='')}"
        assert served.feeder.put(f"{path}/views/r1%2FR1", content=png()).status_code == 201
        views = {"r1/R1": {"refdes": "R1", "component": "A"}}
        answer = served.feeder.post(path, json={"recipe": "tiny", "serial": key, "views": views})
        assert (answer.status_code, answer.json().get("key")) == (202, key), answer.text
        found = served.operator.get("/api/v1/boards", params={"serial": key}).json()["boards"]
        assert [(one["key"], one["serial"]) for one in found] == [(key, key)]
    hidden = served.feeder.put("/api/v1/boards/a%2F%0A/views/R1", content=png())
    problem(hidden, 400, "bad-request")
    assert served.feeder.put("/api/v1/boards/a/b/views/R1", content=png()).status_code == 404
