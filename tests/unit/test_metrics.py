"""What is counted of a run, and from when."""

from dataclasses import replace

import pytest

from coe.cluster.cluster_engine import of_cluster
from coe.core import Failure, FailureKind, Request
from coe.results.metrics import Recorder
from coe.scheduler.events import Arrived, Evicted, Load, Loaded, Rejected, Why
from coe.scheduler.plan import PoolSpec
from coe.scheduler.pool import ModelPool


def came(id, **times):
    return Arrived(Request(id, "R", **times))


def refused(id, **times):
    """Return an image that cannot be decoded."""
    return Rejected(Request(id, "R", **times), Failure(FailureKind.IMAGE, "no picture"))


@pytest.mark.parametrize(
    ("events", "wall_s"),
    [
        # It begins when its first image is handed in; the second was handed in before the first, and decoded after it.
        ([(5.0, came(0, submitted_s=2.0)), (6.0, came(1, submitted_s=1.0)), (9.0, refused(2, submitted_s=8.0))], 8.0),
        # In virtual time it begins when its first image arrives.
        ([(5.0, came(0)), (9.0, refused(1))], 4.0),
        # What is loaded for images to come does not make it longer.
        ([(5.0, came(0)), (6.0, refused(1)), (7.0, Evicted("cpu0", "b")), (9.0, Loaded("cpu0", "a"))], 1.0),
    ],
)
def test_a_run_lasts_from_its_first_image_to_its_last_answer(events, wall_s):
    recorder = Recorder({})
    recorder.observe(None, [], 0.0)
    for now, event in events:
        recorder.observe(event, [], now)
    assert recorder.metrics().wall_s == wall_s


def test_boxes_count_their_stages_and_an_expert_that_went_with_its_device_is_a_switch():
    none = Recorder({}).metrics()
    head = replace(none, images=3, ok=2, ng=1, wall_s=2.0, control_s=0.5)
    boxes = [replace(none, images=4, ok=4, stages=4, switches=2, control_s=0.1, wall_s=9.0, pace=p) for p in (1.0, 1.5)]
    counted = of_cluster(head, boxes)
    assert counted == replace(head, stages=8, switches=4, control_s=0.7, pace=1.5)
    assert of_cluster(head, []) == head
    pool = ModelPool(PoolSpec("cuda0", "cuda", 1000, 0))
    recorder = Recorder({"cuda0": pool})
    pool.plan("a", 10, Why.DEMAND)
    assert pool.reserve("a")
    recorder.observe(None, [Load("cuda0", "a", Why.DEMAND)], 0.0)
    pool.commit("a")
    pool.leave("a")
    pool.release("a")  # the loss of the device was decided on together with the end of the load
    recorder.observe(Loaded("cuda0", "a", 0.5), [], 1.0)
    assert (recorder.metrics().switches, recorder.metrics().switch_s) == (1, 0.5)
