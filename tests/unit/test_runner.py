"""What an executor runs, and the inputs that are made for it ahead."""

import queue
import threading
from contextlib import contextmanager

import cv2
import numpy as np
import pytest
from tiny_line import TINY, fill

from coe import Inspector, Picture
from coe.board import rules
from coe.core import Batch, Expert, FailureKind, Finding, Stage
from coe.errors import ImageError
from coe.inspector.experiment import Experiment
from coe.pictures.image_source import ImageSource, ReferenceSource
from coe.runtime import runner as runner_module
from coe.runtime.admission import Admission
from coe.runtime.inputs import Decoding, ImageInputs, Inputs
from coe.runtime.runner import Runner
from coe.scheduler.backlog import Backlog
from coe.scheduler.events import Arrived, Event, EventBatch, Finished, Run, RunFailed
from coe.scheduler.executor import Executor
from coe.scheduler.plan import ExecutorSpec, PoolSpec
from coe.scheduler.pool import ModelPool
from coe.store.kinds import ExpertInput
from coe.store.store import Store
from coe.testing import rules_from


class Idle:
    def enter(self, executor):
        pass

    def launch(self, executor, pool, expert, images):
        raise AssertionError("no batch gets as far as this")


def told(prepared):
    """Return what is told of a batch whose pictures `prepared` gives."""
    heard = queue.SimpleQueue()
    executor = Executor(ExecutorSpec("cpu0", "cpu", "cpu0"), ModelPool(PoolSpec("cpu0", "cpu", 100, 0)), Backlog())
    experts = {"a": Expert("a", "k", ("ok", "bad"), 8, "board/a")}
    runner = Runner(executor, Idle(), experts, prepared=prepared, tell=heard.put)
    runner.put(Run("cpu0", Batch("a", (Stage(0, "a"),))))
    runner.close()
    runner.work()
    return heard.get()


class Glare(ImageError):
    """Of a user's kind, with a word of its own."""

    failure = "glare"


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (ImageError("is gone"), RunFailed("cpu0", "is gone", FailureKind.IMAGE)),
        (Glare("shows glare"), RunFailed("cpu0", "shows glare", FailureKind.IMAGE)),
        (ValueError("no such axis"), RunFailed("cpu0", "ValueError: no such axis", FailureKind.RUN)),
    ],
)
def test_a_batch_that_fails_says_whether_pictures_or_expert_are_to_blame(error, failed):
    def prepared(command):
        raise error

    assert told(prepared) == failed


class Deep(Idle):
    """A device that begins batches at once; each ends when its gate opens."""

    def __init__(self):
        self.gates = {}
        self.begun = queue.SimpleQueue()
        self.bad = set()

    def launch(self, executor, pool, expert, images):
        self.begun.put(expert.id)
        if expert.id in self.bad:
            raise ValueError(f"{expert.id} cannot begin")
        gate = self.gates.setdefault(expert.id, threading.Event())

        def findings():
            assert gate.wait(60)
            return [Finding(expert.id, "fp32", "ok", 1.0)]

        return findings


def deep_runner(device, prepared, heard, *batches):
    """Return the runner of an executor two batches deep, that is given a batch of each of these experts."""
    spec = ExecutorSpec("gpu0", "gpu", "gpu0", depth=2)
    executor = Executor(spec, ModelPool(PoolSpec("gpu0", "gpu", 100, 0)), Backlog())
    experts = {name: Expert(name, "k", ("ok", "bad"), 8, f"board/{name}") for name in batches}
    runner = Runner(executor, device, experts, prepared=prepared, tell=heard.put)
    for name in batches:
        runner.put(Run("gpu0", Batch(name, (Stage(0, name),))))
    return runner


@pytest.mark.parametrize("bad", [(), ("b",), ("a",)])
def test_a_deep_executor_begins_a_batch_before_it_waits_for_the_one_ahead_and_answers_in_order(bad):
    device, heard = Deep(), queue.SimpleQueue[Event]()
    device.bad.update(bad)
    runner = deep_runner(device, lambda run: [], heard, *"abc")
    functions = runner.thread_functions()
    assert sorted(functions) == ["coe-answers-gpu0", "coe-executor-gpu0"]
    # Daemons: if a batch waits for ever, the test fails and does not hang.
    threads = [threading.Thread(target=function, daemon=True) for function in functions.values()]
    for thread in threads:
        thread.start()
    # All begin, while none has been answered.
    assert [device.begun.get(timeout=60) for _ in "abc"] == ["a", "b", "c"]
    runner.close()
    for name in "cba":
        device.gates.setdefault(name, threading.Event()).set()
    told = [heard.get(timeout=60) for _ in "abc"]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    reasons = [event.reason if isinstance(event, RunFailed) else event.findings[0].expert for event in told]
    assert reasons == [f"ValueError: {name} cannot begin" if name in bad else name for name in "abc"]


class Clock:
    """Stands for `time`; it goes on only when a test says so."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


class Timed(Idle):
    """A device whose batches take a second of the clock; those of "bad" fail after it."""

    def __init__(self, clock):
        self.clock = clock

    def launch(self, executor, pool, expert, images):
        def findings():
            self.clock.now += 1.0
            if expert.id == "bad":
                raise ValueError("no such axis")
            return [Finding(expert.id, "fp32", "ok", 1.0)]

        return findings


def test_the_time_of_a_batch_is_the_devices_alone(monkeypatch):
    """Neither the wait for its images counts, nor that for a batch ahead of it, though that failed."""
    clock, heard, waits_s = Clock(), queue.SimpleQueue[Event](), iter([50.0, 0.0, 0.0])
    monkeypatch.setattr(runner_module, "time", clock)

    def prepared(command):
        clock.now += next(waits_s)
        return []

    runner = deep_runner(Timed(clock), prepared, heard, "a", "bad", "a")
    runner.close()
    launch, answer = runner.thread_functions().values()
    launch()  # all three are on the device before the first has ended
    answer()
    told = [heard.get_nowait() for _ in range(3)]
    assert [event.took_s for event in told if isinstance(event, Finished)] == [1.0, 1.0]
    assert isinstance(told[1], RunFailed)


SIZE = 8
BYTES = 3 * SIZE**2
RULES = rules_from(
    """
board: b
experts:
  body: {kind: k, labels: [ok, bad], input: 8}
  joint: {kind: k, labels: [ok, bad], input: 8, then: {ok: OK, bad: NG}}
  mark: {kind: k, labels: [ok, bad], input: 8, then: {ok: OK, bad: NG}}
components:
  A: {inspect: body, shares: {ok: 0.9}, then: {ok: [joint], bad: mark}}
"""
)


class Painting:
    """A kind that writes into the array it is given; experts in `broken` fail."""

    def __init__(self):
        self.broken = set()

    def preprocess(self, image, expert):
        if expert.id in self.broken:
            raise SystemExit("a kind may raise anything")
        prepared = ExpertInput(np.full((3, SIZE, SIZE), int(image[0, 0, 0]), np.uint8), *image.shape[:2])
        image[:] = 0
        return prepared


@pytest.fixture
def kind():
    return Painting()


@pytest.fixture
def decoded(monkeypatch):
    seen = []
    decode = ImageSource.decode

    def note(source):
        seen.append(source)
        return decode(source)

    monkeypatch.setattr(ImageSource, "decode", note)
    return seen


@contextmanager
def running(kind, ahead_bytes=10 * BYTES):
    inputs = Inputs(RULES.router, RULES.experts, {"k": kind}, Decoding(2, 1 << 30, ahead_bytes))
    for thread in inputs.workers.threads:
        thread.start()
    try:
        yield inputs
    finally:
        inputs.workers.close()


def image(grey=7, order="BGR"):
    return ImageInputs(ImageSource.of(np.full((20, 20, 3), grey, np.uint8), order))


def values(prepared):
    return [int(one.pixels[0, 0, 0]) for one in prepared]


@pytest.mark.parametrize("order", ["BGR", "RGB"])
def test_the_first_expert_and_those_that_probably_follow_share_one_decoding(kind, decoded, order):
    assert RULES.router.likely("A") == ("body", "joint")
    with running(kind) as inputs:
        pictures = [image(7, order), image(8, order)]
        for picture in pictures:
            inputs.begin(picture, "A")
        assert len(decoded) == 2
        # A kind that writes into its array spoils no other expert's.
        assert values(inputs.of_batch("body", pictures)) == [7, 8]
        assert values(inputs.of_batch("joint", pictures)) == [7, 8]
        assert len(decoded) == 2
        assert values(inputs.of_batch("mark", pictures)) == [7, 8]
        assert len(decoded) == 4


def test_inputs_made_ahead_have_their_own_bytes_until_the_image_is_done(kind, decoded):
    with running(kind, ahead_bytes=BYTES) as inputs:
        first, second, third = image(1), image(2), image(3)
        inputs.begin(first, "A")
        inputs.begin(second, "A")
        assert [list(picture.ready) for picture in (first, second)] == [["body", "joint"], ["body"]]
        inputs.done(first)
        inputs.begin(third, "A")
        assert list(third.ready) == ["body", "joint"]
        assert values(inputs.of_batch("joint", [second, third])) == [2, 3]
        assert len(decoded) == 4


def test_each_copy_and_comparing_with_a_reference_are_booked_too(kind, monkeypatch):
    booked = []
    within = Admission.within
    monkeypatch.setattr(Admission, "within", lambda self, size, work: booked.append(size) or within(self, size, work))
    with running(kind) as inputs:
        picture = image()
        inputs.begin(picture, "A")
        inputs.of_batch("mark", [picture])
    assert booked == [2 * 3 * 20 * 20, 3 * 20 * 20]
    # The peak of a comparison was measured as 25 bytes a pixel, beside the picture and its reference.
    source = ImageSource.of(np.zeros((20, 30, 3), np.uint8), "BGR")
    assert source.pixels() == 600
    assert ReferenceSource(source).decoding_bytes() == source.decoding_bytes() + 20 * 600
    damaged = ImageSource.of(b"no picture", "BGR")
    assert ReferenceSource(damaged).decoding_bytes() == damaged.decoding_bytes()


def test_a_kind_that_fails_ahead_fails_when_its_turn_comes_and_not_before(kind):
    kind.broken = {"joint"}
    with running(kind) as inputs:
        picture = image()
        inputs.begin(picture, "A")
        assert values(inputs.of_batch("body", [picture])) == [7]
        with pytest.raises(SystemExit, match="anything"):
            inputs.of_batch("joint", [picture])
        kind.broken = set()
        assert values(inputs.of_batch("joint", [picture])) == [7]


COMPONENTS = "CABBACAAB"


@pytest.fixture
def board(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    fill(Store(tmp_path / "store"), rules.load(path))
    cv2.imwrite(str(tmp_path / "part.png"), np.full((60, 60, 3), 90, np.uint8))
    return path


def arrived(board, pictures):
    """Return the names of pictures in the order in which the decisions heard of them, one under way at a time."""
    options = {"store": board.parent / "store", "memory": "600MB", "profile": "none", "inbox": 1}
    with Inspector(board, experiment=Experiment(keep_trace=True), **options) as line:
        results = list(line.stream(pictures))
    events = [event for _, event, _ in line.trace]
    flat = [each for event in events for each in (event.events if isinstance(event, EventBatch) else (event,))]
    names = [event.request.image for event in flat if isinstance(event, Arrived)]
    assert sorted(names) == sorted(result.request.image for result in results)
    return names


def pictures_of(board, components=COMPONENTS, within_s=None):
    path = board.parent / "part.png"
    return [Picture(path, one, name=f"{one}{n}", within_s=within_s) for n, one in enumerate(components)]


def test_a_list_is_taken_expert_by_expert_and_what_comes_one_by_one_or_is_due_as_it_comes(board):
    assert arrived(board, pictures_of(board)) == ["A1", "A4", "A6", "A7", "B2", "B3", "B8", "C0", "C5"]
    assert arrived(board, iter(pictures_of(board))) == [f"{one}{n}" for n, one in enumerate(COMPONENTS)]
    pictures = [*pictures_of(board), *pictures_of(board, "A", within_s=60)]
    assert arrived(board, pictures) == [picture.name for picture in pictures]


def test_a_component_that_the_board_lacks_is_an_error_of_its_picture_alone(board):
    options = {"store": board.parent / "store", "memory": "600MB", "profile": "none"}
    with Inspector(board, **options) as line:
        results = {result.request.image: result for result in line.stream(pictures_of(board, "BXA"))}
    assert {name: result.error is None for name, result in results.items()} == {"B0": True, "X1": False, "A2": True}
