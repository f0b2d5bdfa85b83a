"""Events that come together are taken in one by one, in their order, and decided on once."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lines import ENGINE, board, line_of

from coe.core import Failure, FailureKind, Finding, Request
from coe.scheduler.controller import Controller
from coe.scheduler.events import (
    Arrived,
    EventBatch,
    Evict,
    Evicted,
    Finished,
    GiveUp,
    Load,
    Loaded,
    Rejected,
    Reply,
    Run,
    single_steps,
)

BOARD = board({"A": 5, "B": 3, "C": 1}, {"a": "d", "b": "d"})


def line(strategy):
    controller = line_of(BOARD, 34, strategy=strategy).controller
    assert isinstance(controller, Controller)
    return controller


def answers(command):
    """Return what happens when a command is carried out: every expert says ok."""
    match command:
        case Load():
            return Loaded(command.pool, command.expert)
        case Evict():
            return Evicted(command.pool, command.expert)
        case Run():
            expert = command.batch.expert
            return Finished(command.executor, (Finding(expert, "fp32", "ok", 0.9, margin=0.9),) * len(command.batch))
    return None


def run(controller, events, chance, most):
    """Hand events in, up to `most` together; return the replies."""
    pending, replies, now = list(events), [], 0.0
    commands = controller.start(now)
    while True:
        pending += [event for command in commands if (event := answers(command)) is not None]
        replies += [command.result for command in commands if isinstance(command, Reply)]
        if not pending:
            break
        number, now = min(chance.randint(1, most), len(pending)), now + 0.1
        came, pending = pending[:number], pending[number:]
        commands = controller.handle(came[0] if number == 1 else EventBatch(tuple(came)), now)
        controller.check()
    controller.check(idle=True)
    return replies


@pytest.mark.parametrize("strategy", ["coserve", "late-binding"])
def test_images_that_come_together_run_together(strategy):
    arrived = tuple(Arrived(Request(number, "A")) for number in range(3))
    sizes = []
    for events in (arrived, (EventBatch(arrived),)):
        controller = line(strategy)
        pending = controller.start(0.0)
        while pending:
            load = pending.pop(0)
            pending += controller.handle(Loaded(load.pool, load.expert), 0.0)
        commands = [command for event in events for command in controller.handle(event, 1.0)]
        sizes.append([len(command.batch) for command in commands if isinstance(command, Run)])
    assert sizes == [[1], [3]]


@given(st.sampled_from(ENGINE), st.text("ABCX", max_size=20), st.integers(0, 99), st.integers(1, 9))
def test_every_image_gets_the_same_one_reply_however_events_come(strategy, components, seed, most):
    refused = Failure(FailureKind.IMAGE, "no picture")
    events = [
        Rejected(Request(number, name), refused) if name == "X" else Arrived(Request(number, name))
        for number, name in enumerate(components)
    ]
    replies = run(line(strategy), events, random.Random(seed), most)
    said = {result.request.id: (result.verdict, result.failure, len(result.findings)) for result in replies}
    assert len(replies) == len(said) == len(components)
    alone = run(line(strategy), events, random.Random(seed), 1)
    assert said == {result.request.id: (result.verdict, result.failure, len(result.findings)) for result in alone}


def test_whoever_watches_sees_each_event_and_all_commands_with_the_last():
    first, second = Loaded("cpu0", "a"), Evicted("cpu0", "b")
    commands = [Load("cpu0", "b", why=None)]
    assert list(single_steps(EventBatch((first, second)), commands)) == [(first, []), (second, commands)]
    assert list(single_steps(first, commands)) == [(first, commands)]
    assert list(single_steps(None, commands)) == [(None, commands)]


def test_findings_that_came_with_an_event_at_which_a_policy_fails_still_decide():
    controller = line_of(board({"A": 1, "B": 1}), 24, executors=2).controller
    pending = controller.start(0.0)
    for command in pending:
        pending += controller.handle(answers(command), 0.0)  # type: ignore[arg-type]
    arrived = [Arrived(Request(number, name)) for number, name in enumerate("AB")]
    runs = [command for event in arrived for command in controller.handle(event, 1.0)]
    assert [type(command) for command in runs] == [Run, Run]
    unknown = Loaded("cpu0", "martian")  # whatever raises while an event is taken in
    *replies, last = controller.handle(EventBatch((unknown, *map(answers, runs))), 2.0)  # type: ignore[arg-type]
    assert [reply.result.verdict for reply in replies if isinstance(reply, Reply)] == ["OK", "OK"]
    assert isinstance(last, GiveUp)
