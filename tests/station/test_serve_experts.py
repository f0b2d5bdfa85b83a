"""The page of experts: what lies in memory, whose scores have left their limits, how far people agree."""

import time
from contextlib import closing
from dataclasses import replace

import pytest
from quick_line import COSTS, EXPERTS, quick
from serve_rows import NOON, decision, ng, the
from serving import hand_in, signed_in

from coe.scheduler.events import Evicted, Loaded, Lost
from coe.serve.clock import now_us
from coe.serve.database import board_rows, states
from coe.serve.enums import Process, Role
from coe.serve.worker.line_watch import LineWatch
from coe.store.exam import NO_EXAM, NO_GOOD


def test_an_expert_is_resident_from_its_load_to_its_eviction(tiny):
    watch, resident = LineWatch(time.monotonic, 60), []
    with quick(tiny) as line:
        (pool,) = (one.id for one in line.plan.pools)
        steps = [
            None,
            Loaded(pool, "body-a"),
            Loaded(pool, "joint"),
            Evicted(pool, "body-a"),
            Lost("cpu", "it is gone"),
        ]
        for step in steps:
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


@pytest.fixture
def used(served):
    """A service in which `body` is in memory, `joint` is on disk, and `old` is not open."""
    hand_in(served.feeder, "k1", {"R1": "A"})
    with served.database.writing() as connection:
        board = the(board_rows.of_key(connection, "k1"))
        made = decision(board, ng("R1"), replace(ng("R2"), expert="old"), at_us=now_us())
        board_rows.decide(connection, made)
        experts = {
            "body": {"bytes": 44 << 20, "devices": ["cuda"], "rules": 0.25, "estimated": 0.5},
            "joint": {"bytes": 20 << 20, "devices": [], "rules": 0.1, "estimated": None},
        }
        experts["joint"]["notes"] = ["small defects may pass"]
        experts["joint"]["exam"] = [["turned", 18, 20, 0.99, True], ["missing", 0, 20, 0.139, False]]
        states.beat(connection, Process.WORKER, pid=1, now_us=now_us(), facts={}, experts=experts)
    return served


def test_the_page_tells_memory_use_and_agreement(used):
    word, tag = {"outcome": "false call"}, {"If-Match": '"0"'}
    assert used.operator.post("/api/v1/calls/1/verification", json=word, headers=tag).status_code == 201
    with closing(signed_in(used, Role.ENGINEER)) as person:
        text = " ".join(person.get("/experts").text.split())
    rows = {part.partition("<")[0]: part for part in text.split('<th scope="row" class="code">')[1:]}
    assert sorted(rows) == ["body", "joint", "old"]
    assert "44.0 MiB" in rows["body"]
    assert "cuda" in rows["body"]
    assert "50.0 % <small>of 25.0 %" in rows["body"]
    assert "0.0 %" in rows["body"], "people agreed with none of its calls"
    assert "on disk" in rows["joint"]
    blind, _, stopped = rows["joint"].partition("turned 18 of 20")
    assert 'class="mark review"' in blind
    assert 'title="at most 13.9 %">missing 0 of 20' in stopped
    assert "no exam" in rows["body"]
    assert ["small defects may pass" in rows[name] for name in ("joint", "body", "old")] == [True, False, False]
    assert "not open" in rows["old"]
