"""What came in and what was found, read out of the record of a run."""

from coe.core import Batch, Failure, FailureKind, Finding, Request, Stage
from coe.lab.measured_run import recorded
from coe.scheduler.events import Arrived, EventBatch, Finished, Rejected, Run, RunFailed
from coe.sim.agenda import Arrival


def says(expert, label):
    return Finding(expert, "fp32", label, 1.0)


def run(executor, expert, *requests):
    return Run(executor, Batch(expert, tuple(Stage(request, expert) for request in requests)))


def test_requests_are_numbered_as_they_came_and_findings_with_them():
    trace = [
        (0.0, None, []),
        (2.0, Arrived(Request(7, "B", "second.png")), [run("cpu0", "b", 7)]),
        (2.5, Rejected(Request(3, "A"), Failure(FailureKind.IMAGE, "no image")), []),
        (2.5, Arrived(Request(1, "A")), [run("cpu1", "a", 1)]),
        # The batch that follows at once on the same executor is not the one that finished.
        (3.0, Finished("cpu0", (says("b", "ok"),)), [run("cpu0", "c", 7)]),
        (3.5, Finished("cpu1", (says("a", "bad"),)), []),
        (4.0, Finished("cpu0", (says("c", "bad"),)), []),
    ]
    seen = recorded(trace)
    assert seen.arrivals == (Arrival(0.0, Request(0, "B", "second.png")), Arrival(0.5, Request(1, "A")))
    assert seen.findings == {0: {"b": says("b", "ok"), "c": says("c", "bad")}, 1: {"a": says("a", "bad")}}


def test_a_batch_that_failed_and_ran_again_counts_as_it_ended():
    trace = [
        (0.0, Arrived(Request(0, "A")), []),
        (0.0, Arrived(Request(1, "A")), [run("cpu0", "a", 0, 1)]),
        (1.0, RunFailed("cpu0", "the model said no"), [run("cpu0", "a", 0)]),
        (2.0, Finished("cpu0", (says("a", "ok"),)), [run("cpu0", "a", 1)]),
        (3.0, RunFailed("cpu0", "the model said no"), []),
    ]
    assert recorded(trace).findings == {0: {"a": says("a", "ok")}}


def test_events_that_came_together_count_as_those_that_came_alone():
    arrived = [Arrived(Request(number, "A")) for number in range(2)]
    ended = Finished("cpu0", (says("a", "ok"), says("a", "bad")))
    together = [(1.0, EventBatch(tuple(arrived)), [run("cpu0", "a", 0, 1)]), (2.0, ended, [])]
    alone = [(1.0, arrived[0], []), (1.0, arrived[1], [run("cpu0", "a", 0, 1)]), (2.0, ended, [])]
    assert recorded([]).arrivals == ()
    assert recorded(together) == recorded(alone)
    assert recorded(together).findings == {0: {"a": says("a", "ok")}, 1: {"a": says("a", "bad")}}
