"""The public API on real networks."""

import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from tables import with_slow_rows

from coe import Inspector, Picture
from coe.errors import ConfigError, LineFull, StoreError
from coe.runtime.engine import Engine
from coe.scheduler.events import Loaded, single_steps
from coe.testing import Experiment


@pytest.mark.parametrize(
    "options",
    with_slow_rows(
        [
            {"strategy": "late-binding", "memory": "12MB"},
            {"strategy": "narrow_strategy:ONE_AT_A_TIME", "memory": "12MB"},
            {"strategy": "samba-parallel", "memory": "18MB", "executors": "cpu=2"},
            {"strategy": "late-binding", "memory": "60MB", "executors": "cpu=2", "max_wait_s": 0.1},
            {"strategy": "coserve", "memory": "12MB"},
            {"strategy": "samba", "memory": "12MB"},
            {"strategy": "coserve-none", "memory": "12MB"},
            {"strategy": "coserve", "memory": "60MB", "executors": "cpu=2"},
        ],
        fast=2,
    ),
    ids=lambda options: "-".join(str(value) for value in options.values()),
)
def test_verdicts_do_not_depend_on_strategy_memory_or_executors(inspect_all, pictures, options):
    expected = inspect_all(pictures, memory="2GiB")
    found = inspect_all(pictures, **options)
    for name, result in expected.items():
        assert found[name].verdict == result.verdict
        assert [f.label for f in found[name].findings] == [f.label for f in result.findings]
        for one, other in zip(found[name].findings, result.findings, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-3)


def test_what_is_due_and_not_there_is_late_and_still_judged(tiny, pictures):
    board, store = tiny
    with Inspector(board, store=store, memory="12MB", strategy="late-binding") as line:
        first, last = pictures[0], pictures[-1]
        hopeless = line.submit(first.image, first.component, serial="SN1", within_s=1e-6)
        easy = line.submit(last.image, last.component, serial="SN2", within_s=600.0)
        assert (hopeless.result().late, hopeless.result().error) == (True, None)
        assert not easy.result().late
        seen = line.metrics()
        assert {one.expert for one in line.drift()} <= set(line.rules.experts)
    assert (seen.late, seen.late_boards) == (1, 1)


def test_due_times_that_a_strategy_would_pass_over_are_refused(tiny, pictures):
    board, store = tiny
    with (
        Inspector(board, store=store, memory="12MB", strategy="coserve") as line,
        pytest.raises(ConfigError, match="'coserve' looks at neither ages nor due times"),
    ):
        line.submit(pictures[0].image, pictures[0].component, within_s=5.0)


def test_a_budget_for_one_expert_makes_switches_and_is_never_passed(tiny, pictures):
    board, store = tiny
    with Inspector(board, store=store, memory="12MB") as line:
        assert all(result.error is None for result in line.stream(pictures))
        seen = line.metrics()
    # Each expert comes in at least once; how often again is the strategy's business.
    assert seen.switches + seen.initial_loads >= len(line.rules.experts)
    assert seen.switches >= 1
    assert 5e6 < seen.peak_reserved_bytes <= 12e6


def test_weights_are_read_not_mapped_and_evicted_ones_leave_no_memory_beyond_the_budget(tiny, pictures):
    board, store = tiny
    with Inspector(board, store=store, memory="12MB") as line:
        for _ in line.stream(pictures):
            pass
        (device,) = line._engine.devices.values()
        assert str(store) not in Path("/proc/self/maps").read_text(encoding="utf-8")
        assert device._buffers.allocated_bytes <= 12e6


def test_arrays_bytes_paths_and_colour_orders_give_the_same_finding(tiny, tmp_path):
    board, store = tiny
    pixels = np.random.default_rng(1).integers(0, 255, (60, 50, 3), dtype=np.uint8)
    path = tmp_path / "picture.png"
    cv2.imwrite(str(path), pixels)
    with Inspector(board, store=store) as line:
        futures = [
            line.submit(pixels, "C", order="BGR"),
            line.submit(pixels[..., ::-1], "C", order="RGB"),
            line.submit(path, "C"),
            line.submit(str(path), "C"),
            line.submit(path.read_bytes(), "C"),
        ]
        scores = {future.result(60).findings[0].score for future in futures}
    assert max(scores) - min(scores) < 1e-5


@pytest.mark.parametrize("limit", ["inbox", "inbox_bytes"])
def test_an_inbox_bounds_images_and_bytes(tiny, limit):
    board, store = tiny
    with Inspector(board, store=store, on_full="raise", **{limit: 1}) as line:
        future = line.submit(np.zeros((50, 50, 3), np.uint8), "C")
        with pytest.raises(LineFull, match="1 images are under way"):
            line.submit(np.zeros((50, 50, 3), np.uint8), "C")
        assert future.result(60).error is None


def test_a_ready_line_holds_what_it_begins_with(tiny):
    board, store = tiny
    seen: list[object] = []
    with Inspector(board, store=store, watchers=[_Watcher(seen)], experiment=Experiment(keep_trace=True)) as line:
        assert line.ready(60)
        assert line.metrics().initial_loads == 4
        assert [type(event) for event in seen] == [type(None), *[Loaded] * 4]
        assert line.metrics().wall_s == 0.0
        line.submit(np.zeros((50, 50, 3), np.uint8), "C").result(60)
        assert [part for _, event, commands in line.trace for part, _ in single_steps(event, commands)] == seen
    assert line.metrics().switches == 0


def test_a_line_that_cannot_load_is_ready_all_the_same(own_tiny):
    board, store = own_tiny
    (store / "tiny/body-a/weights.safetensors").write_bytes(b"not weights")
    with Inspector(board, store=store) as line:
        assert line.ready(60)


def test_a_line_that_is_closed_early_says_that_it_never_was_ready(tiny):
    board, store = tiny
    # The slowest of disks: 45 MB at 1 MB/s. Closing does not wait for it.
    line = Inspector(board, store=store, disk_bandwidth="1MB/s")
    assert not line.ready(0.05)
    began = time.monotonic()
    line.close()
    assert time.monotonic() - began < 20
    assert not line.ready()


class _Watcher:
    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def observe(self, event, commands, now, control_s=0.0):
        self._seen.append(event)


def test_a_callback_that_blocks_does_not_stop_the_line(tiny):
    board, store = tiny
    gate = threading.Event()
    with Inspector(board, store=store) as line:
        line.submit(np.zeros((50, 50, 3), np.uint8), "C").add_done_callback(lambda _: gate.wait(30))
        line.submit(np.zeros((50, 50, 3), np.uint8), "C")
        while line.metrics().images < 2:
            pass
        gate.set()


def test_damaged_weights_cost_their_own_images_alone(own_tiny, pictures):
    board, store = own_tiny
    weights = store / "tiny" / "body-a" / "weights.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1000] ^= 1
    weights.write_bytes(damaged)
    with Inspector(board, store=store) as line:
        results = list(line.stream(pictures))
    for result in results:
        if result.request.component == "A":
            assert result.error.startswith(
                "expert 'body-a' cannot be loaded: tiny/body-a/weights.safetensors is damaged"
            )
        else:
            assert result.error is None


def test_truncated_weights_and_pickles_are_refused(own_tiny, pictures):
    board, store = own_tiny
    (store / "tiny/body-a/weights.safetensors").write_bytes(b"\x80\x04not weights")
    whole = (store / "tiny/body-b/weights.safetensors").read_bytes()
    (store / "tiny/body-b/weights.safetensors").write_bytes(whole[: len(whole) // 2])
    with Inspector(board, store=store) as line:
        results = list(line.stream(pictures))
    assert all((result.error is not None) == (result.request.component in "AB") for result in results)


def test_missing_weights_are_said_before_anything_starts(own_tiny, tmp_path):
    board, _ = own_tiny
    with pytest.raises(StoreError, match=r"4 of 4 experts of board 'tiny' have no weights"):
        Inspector(board, store=tmp_path / "elsewhere")


def test_weights_for_other_labels_are_said_before_anything_starts(own_tiny):
    board, store = own_tiny
    was = "body-c: {kind: narrow, labels: [ok, bad]"
    text = board.read_text(encoding="utf-8").replace(was, was.replace("bad", "scratched"))
    board.write_text(text.replace("body-c, then: {ok: OK, bad: NG}", "body-c, then: {ok: OK, scratched: NG}"))
    with pytest.raises(StoreError, match=r"body-c.*ok, scratched.*are a narrow of 48 pixels for ok, bad"):
        Inspector(board, store=store)


def test_labels_in_another_order_are_those_of_the_weights_by_name(own_tiny, pictures):
    board, store = own_tiny
    of_c = [picture for picture in pictures if picture.component == "C"]

    def findings():
        with Inspector(board, store=store) as line:
            results = [result.findings[-1] for result in line.stream(of_c)]
        return sorted((finding.label, finding.score) for finding in results)

    before = findings()
    was = "body-c: {kind: narrow, labels: [ok, bad]"
    text = board.read_text(encoding="utf-8")
    assert was in text
    assert before
    board.write_text(text.replace(was, was.replace("[ok, bad]", "[bad, ok]")))
    assert findings() == before


def test_a_budget_under_one_expert_is_said_with_the_least_that_would_do(tiny):
    board, store = tiny
    with pytest.raises(ConfigError, match=r"does not hold expert 'body-[abc]' .* give at least \d+"):
        Inspector(board, store=store, memory="3MB")


def test_a_bug_in_the_controller_still_answers_every_image(tiny, pictures, monkeypatch):
    board, store = tiny
    with Inspector(board, store=store) as line:
        engine: Engine = line._engine
        monkeypatch.setattr(engine.controller, "handle", lambda event, now: 1 / 0)
        results = [line.submit(p.image, p.component).result(60) for p in pictures[:3]]
    for result in results:
        assert "the engine failed: ZeroDivisionError" in result.error
        assert "(test_inspector.py:" in result.error, "a policy of a user's own is found by this"


@pytest.mark.data
def test_real_images_of_every_set_are_inspected(tiny, data):
    board, store = tiny
    paths = [
        *sorted(data.glob("deeppcb/PCBData/group00041/00041/*_test.jpg"))[:4],
        *sorted(data.glob("lookout-objects/test/*/*/*"))[::8],
        *sorted(data.glob("visa-pcb-samples/*/defective.jpg")),
    ]
    assert len(paths) > 8
    with Inspector(board, store=store, memory="13MB") as line:
        results = list(line.stream(Picture(path, "A", name=str(path)) for path in paths))
    assert [result.error for result in results] == [None] * len(paths)
    assert all(len(result.findings) == 2 for result in results)
