"""Pages: who may see them, what they load and tell, and that no text of a client becomes markup."""

import re
import time
from contextlib import closing
from dataclasses import replace

import pytest
from quick_line import COSTS, EXPERTS, quick
from serve_rows import NOON, decide, ng, the
from serving import hand_in, png, problem, say, signed_in
from sqlalchemy import update
from tiny_line import TINY

from coe.core import Verdict
from coe.scheduler.events import Evicted, Loaded, Lost
from coe.serve.clock import HOUR_US, LocalTime, now_us
from coe.serve.database import board_rows, fault_log, repairs, states, tables, trial_rows
from coe.serve.database.board_rows import Decision, GoodComponent
from coe.serve.database.tables import NewCall, NewEscape, NewFault
from coe.serve.database.trial_rows import TrialNews
from coe.serve.enums import CallReason, FaultKind, Process, Role, TrialState, Truth
from coe.serve.gate.pages import rendering
from coe.serve.gate.pages.page_routes import PAGES
from coe.serve.gate.pages.rendering import STATIC
from coe.serve.statistics import Chart, ChartPoint
from coe.serve.trials import TrialCounts, TriedPart
from coe.serve.worker.line_watch import LineWatch
from coe.store.exam import NO_EXAM, NO_GOOD

SCRIPT = "<script>alert('x')</script>\"'>"
PLACES = {"{id:int}": "1", "{name}/{version:int}": "tiny/1", "{draft}": "new", "{step}": "files"}


def with_places(path):
    for place, value in PLACES.items():
        path = path.replace(place, value)
    return path


PATHS = [with_places(one.path) for one in PAGES if one.roles is not None]


@pytest.fixture(autouse=True)
def draft(served):
    assert served.engineer.post("/teach", json={"name": "new"}).status_code == 201


def with_hostile_texts(served):
    """Put markup into each text that a client, a recipe or an expert can give."""
    word = SCRIPT
    hand_in(served.feeder, "<b>k1", {"R1": "A", "R2": "A"}, serial=word, panel=word, work_order=word)
    finding = {"expert": word, "variant": word, "label": word, "score": 0.5, "boxes": []}
    hostile = NewCall(
        "R1", word, Verdict.NG, CallReason.EXPERT, detail=word, expert=word, label=word, findings=[finding]
    )
    with served.database.writing() as connection:
        board = board_rows.newest(connection)[0]
        good = GoodComponent(word, word, 1, None, [finding])
        call = replace(hostile, view_id=1)
        board_rows.decide(connection, Decision(board, Verdict.NG, now_us(), False, [call], [good], word))
        fault_log.note(connection, NewFault(Process.WORKER, FaultKind.BOARD_FAILED, word, word), now_us())
        repairs.report_escape(connection, NewEscape(word, now_us(), word, word, word, word, word, word))
        counts = TrialCounts()
        counts.add(TriedPart(board.id, word, word, Truth.DEFECT, Verdict.NG, Verdict.OK))
        tried = trial_rows.add(connection, "tiny", {"rules": TINY}, {"recipe": word}, by=word, now_us=now_us())
        trial_rows.write(connection, tried.id, TrialNews(TrialState.FAILED, counts.json, word), now_us())
        facts = {"recipes": [word], "boards": []}
        states.beat(connection, Process.WORKER, pid=1, now_us=now_us(), facts=facts)
    assert say(served.operator, 1, "confirmed", label=word, note=word).status_code == 201


@pytest.fixture
def person(served):
    with closing(signed_in(served, Role.ENGINEER, name=SCRIPT)) as client:
        yield client


def test_no_text_becomes_markup_on_any_page(served, person):
    with_hostile_texts(served)
    seen = ""
    for path in [*PATHS, "/line/part", "/statistics?by=label&recipe=" + SCRIPT, "/login?next=" + SCRIPT]:
        answer = person.get(path)
        assert answer.status_code == (400 if "recipe=" in path else 200), path
        assert "<script>alert" not in answer.text, path
        assert "<b>k1" not in answer.text, path
        scripts = re.findall(r"<script[^>]*>(.*?)</script>", answer.text, re.DOTALL)
        assert not any(script.strip() for script in scripts), f"{path} has an inline script"
        assert not re.search(r"\s(style|on\w+)=", answer.text), f"{path} has what its policy forbids"
        seen += answer.text
    assert seen.count("&lt;script&gt;alert") > 10


def test_pages_load_nothing_from_elsewhere_and_their_files_alone_are_served(served, person):
    for path in [*PATHS, "/login"]:
        if path == "/boards/1":
            continue
        answer = person.get(path)
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        for address in re.findall(r'(?:src|href|action)="([^"]*)"', answer.text):
            assert address.startswith(("/", "#")), f"{path} names {address}"
            assert not address.startswith("//")
    for name, media_type in STATIC.items():
        answer = served.nobody.get(f"/static/{name}")
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, media_type)
        assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    for name in ("..%2Fviews.py", "base.j2", "%2Fetc%2Fpasswd", "x"):
        assert served.nobody.get(f"/static/{name}").status_code == 404, name


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1366])
def test_axe_finds_no_barrier_on_any_page(served, browser, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe here (requirements.real.lock)")
    with_hostile_texts(served)
    for kind, content in (("boards", png()), ("placements", b"Ref,PosX,PosY,Rot,Side\nR1,5,5,0,top\n")):
        assert served.engineer.put(f"/teach/new/files/{kind}", content=content, params={"name": "a.csv"}).is_success
    page = browser.new_page(viewport={"width": width, "height": 740}, color_scheme=scheme)
    page.goto(f"{served.address}/login")
    page.fill("#key", served.engineer.headers["Authorization"].removeprefix("Bearer "))
    page.keyboard.press("Enter")
    page.wait_for_selector("nav")
    found = {}
    for path in [*PATHS, "/teach/new/reading", "/login", "/nowhere"]:
        page.goto(f"{served.address}{path}")
        page.wait_for_timeout(300)  # what its script draws
        for one in axe.Axe().run(page).response["violations"]:
            found[path, one["id"]] = [node["html"] for node in one["nodes"]]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found[path] = "it is wider than its screen"
    assert found == {}


def test_who_is_not_signed_in_is_asked_for_a_key_and_comes_back(served):
    for path in PATHS:
        answer = served.nobody.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=%2F")
    assert served.nobody.get("/line/part").status_code == 401


def test_a_path_that_leads_nowhere_is_a_page_for_people_and_a_problem_for_programs(served, person):
    by_person = {"Accept": "text/html,*/*;q=0.8"}
    page = person.get("/nothing/here", headers=by_person)
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (404, "text/html")
    assert "<nav" in page.text
    assert served.nobody.get("/nothing/here", headers=by_person).headers["location"].startswith("/login?next=")
    for client in (served.operator, served.nobody):
        problem(client.get("/api/v1/nothing"), 404, "not-found")


def test_open_faults_stand_above_all_that_are_cleared(served, person):
    with served.database.writing() as connection:
        fault_log.note(connection, NewFault(Process.WEB, FaultKind.SINK, "the oldest", "plant"), now_us())
        for number in range(120):
            fault_log.note(connection, NewFault(Process.WEB, FaultKind.DISK_FULL, f"fault {number}"), now_us())
            fault_log.clear_about(connection, Process.WEB, FaultKind.DISK_FULL, about="", now_us=now_us())
    text = person.get("/faults").text
    assert 0 < text.index("the oldest") < text.index("fault 119")


def test_only_engineers_see_the_audit_and_it_is_verified(served, person):
    with_hostile_texts(served)
    assert "The chain is intact" in person.get("/faults").text
    assert "data-post" in person.get("/faults").text
    with closing(signed_in(served, Role.OPERATOR)) as operator:
        text = operator.get("/faults").text
    assert "Only engineers see the audit" in text
    assert "data-post" not in text


def test_the_line_shows_the_board_under_inspection(served, person):
    assert "Line does not answer" in person.get("/").text
    hand_in(served.feeder, "k1", {"R1": "A", "R2": "A"}, serial="SN7")
    with served.database.writing() as connection:
        facts = {"recipes": ["tiny 1"], "switches": 3, "boards": [{"board": 1, "done": 1, "of": 2}]}
        states.beat(connection, Process.WORKER, pid=1, now_us=now_us(), facts=facts)
    text = person.get("/line/part").text
    assert "inspected: 1 of 2 parts" in text
    assert text.count('<rect class="done"') == text.count('<rect class="todo"') == 1


def test_the_picture_of_a_call_stands_beside_a_good_one_of_the_same_place(served, person):
    for key in ("k1", "k2"):
        hand_in(served.feeder, key, {"R1": "A", "R2": "A"})
    good = [GoodComponent("R1", "A", 1, None, []), GoodComponent("R2", "A", 2, None, [])]
    decide(served.database, "k1", fine=good)
    decide(served.database, "k2", replace(ng("R2", view_id=4), component="A"), fine=[])
    views = {number: person.get(f"/api/v1/views/{number}/picture").content for number in (1, 2, 4)}
    assert person.get("/api/v1/calls/1/picture").content == views[4]
    assert person.get("/api/v1/calls/1/reference").content == views[2] != views[1]
    assert person.get("/api/v1/calls/1/picture").headers["content-type"] == "image/png"
    assert served.feeder.get("/api/v1/calls/1/picture").status_code == 403
    # A picture whose time of retention is over is none, also where a call still names its row.
    for number, shown in ((2, views[1]), (1, None)):
        with served.database.writing() as connection:
            connection.execute(update(tables.view).where(tables.view.c.id == number).values(removed_us=now_us()))
        answer = person.get("/api/v1/calls/1/reference")
        assert (answer.content == shown) if shown else (answer.status_code == 404)


def chart_of(*values, signals=None):
    points = [
        ChartPoint(hour * HOUR_US, value, 0.0, 0.4 if hour == signals else 1.0, 9) for hour, value in enumerate(values)
    ]
    return Chart(0.5, 1.0, tuple(points))


def test_a_chart_lies_within_its_frame_and_a_long_one_has_dots_for_what_signals_alone():
    drawn = the(rendering.draw(chart_of(0.5, 0.7, 0.8), LocalTime()))
    assert (drawn.line.count("M"), len(drawn.dots)) == (1, 3)
    assert all(rendering.TOP <= dot.y <= rendering.HEIGHT - rendering.BOTTOM for dot in drawn.dots)
    assert rendering.draw(chart_of(), LocalTime()) is None
    assert rendering.draw(chart_of(0.0), LocalTime()) is not None
    drawn = the(rendering.draw(chart_of(*[0.5] * 150, signals=70), LocalTime()))
    assert [dot.signals for dot in drawn.dots] == [True]
    assert drawn.line.count("L") == 149


def test_an_expert_is_resident_from_its_load_to_its_eviction(tiny):
    watch, resident = LineWatch(time.monotonic, 60), []
    with quick(tiny) as line:
        (pool,) = (one.id for one in line.plan.pools)
        loads = Loaded(pool, "body-a"), Loaded(pool, "joint")
        for step in (None, *loads, Evicted(pool, "body-a"), Lost("cpu", "it is gone")):
            watch.observe(step, [], 0.0)
            facts = watch.experts(line)
            resident.append([name for name, fact in facts.items() if fact["devices"] == ["cpu"]])
        watch.begin()
        watch.observe(Loaded(pool, "body-c"), [], 0.0)
        facts = watch.experts(line)
    assert resident == [[], ["body-a"], ["body-a", "joint"], ["joint"], []]
    assert sorted(facts) == sorted(EXPERTS)
    assert facts["body-c"]["devices"] == ["cpu"]
    assert facts["body-c"]["bytes"] == COSTS("cpu", "body-c").weights_bytes
    assert 0 < facts["body-c"]["rules"] < 1
    assert facts["body-c"]["exam"] == []
    assert facts["body-c"]["notes"] == facts["joint"]["notes"] + [NO_GOOD] == [NO_EXAM, NO_GOOD]


def test_what_the_line_said_of_experts_stays_until_it_says_more(database):
    says = ({"a": {"bytes": 1}}, None, {"b": {"bytes": 2}})
    kept = []
    for experts in says:
        database.write(states.beat, Process.WORKER, pid=1, now_us=NOON, facts={"n": 1}, experts=experts)
        kept.append(database.read(states.heartbeats)[Process.WORKER].experts)
    assert kept == [says[0], says[0], says[2]]


def test_the_page_tells_memory_use_and_agreement(served):
    """`body` is in memory, `joint` is on disk, and `old` is not open."""
    hand_in(served.feeder, "k1", {"R1": "A"})
    decide(served.database, "k1", ng("R1"), replace(ng("R2"), expert="old"))
    with served.database.writing() as connection:
        experts = {
            "body": {"bytes": 44 << 20, "devices": ["cuda"], "rules": 0.25, "estimated": 0.5},
            "joint": {"bytes": 20 << 20, "devices": [], "rules": 0.1, "estimated": None},
        }
        exam = [["turned", 18, 20, 0.99, True], ["missing", 0, 20, 0.139, False]]
        experts["joint"] |= {"notes": ["small defects may pass"], "exam": exam}
        states.beat(connection, Process.WORKER, pid=1, now_us=now_us(), facts={}, experts=experts)
    assert say(served.operator, 1, "false call").status_code == 201
    with closing(signed_in(served, Role.ENGINEER)) as person:
        text = " ".join(person.get("/experts").text.split())
    rows = {part.partition("<")[0]: part for part in text.split('<th scope="row" class="code">')[1:]}
    assert sorted(rows) == ["body", "joint", "old"]
    assert "44.0 MiB" in rows["body"]
    assert "cuda" in rows["body"]
    assert "50.0 % <small>rules: 25.0 %" in rows["body"]
    assert "0.0 %" in rows["body"], "people agreed with none of its calls"
    assert "on disk" in rows["joint"]
    blind, _, stopped = rows["joint"].partition("turned 18 of 20")
    assert 'class="mark review"' in blind
    assert 'title="at most 13.9 %">missing 0 of 20' in stopped
    assert "no exam" in rows["body"]
    assert ["small defects may pass" in rows[name] for name in ("joint", "body", "old")] == [True, False, False]
    assert "not open" in rows["old"]
