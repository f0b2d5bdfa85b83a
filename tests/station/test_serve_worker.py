"""The line decides each accepted board once, by its due time, and what nobody has seen is REVIEW."""

import errno
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from exams import exam, give
from quick_line import QuickDevice
from serving import activated, embedded_database
from stations import DARK, LIGHT, deciding, grey, quick_opener
from tiny_line import TINY
from waiting import eventually

from coe.core import Batch, Stage, Verdict
from coe.errors import DeviceLost
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import Finished, Load, Loaded, LoadFailed, Lost, Run, RunFailed, Why
from coe.serve import processes
from coe.serve.clock import Clocks, now_us
from coe.serve.database import board_rows, states
from coe.serve.database.connecting import open_database
from coe.serve.enums import BoardState, CallReason, EventKind, FaultKind, Intake, LineState, Process, Subject
from coe.serve.worker import station as station_module
from coe.serve.worker.line_watch import LineHangs, LineWatch, RunningBatch
from coe.serve.worker.station import MAX_ATTEMPTS, Station
from coe.store.store import Store

database = embedded_database(busy_s=0.2)


def test_a_board_gets_its_verdict_and_its_calls(shop):
    board = shop.accept({"R1": LIGHT, "R2": DARK, "R3": LIGHT})
    fine = shop.accept({"R1": LIGHT}, key="k2")
    shop.decide(board, fine)
    found = shop.state(board)
    assert (found.state, found.verdict, found.components, found.calls) == (BoardState.DECIDED, Verdict.NG, 3, 1)
    (call,) = shop.calls(board)
    assert (call.refdes, call.expert, call.label, call.reason) == ("R2", "body-c", "bad", CallReason.EXPERT)
    assert shop.state(fine).state is BoardState.VERIFIED
    good = board_rows.unpack(shop.database.read(board_rows.findings_of, board.id))
    assert [one.refdes for one in good] == ["R1", "R3"]
    assert shop.database.read(states.line) is LineState.DOWN
    assert shop.kinds(board) == [EventKind.BOARD_ACCEPTED, EventKind.BOARD_STARTED, EventKind.BOARD_DECIDED]


def test_what_an_expert_is_blind_to_makes_no_board_ok(shop, own_tiny):
    give(Store(own_tiny[1]), "tiny/body-c", exam(missing=False))
    blind = replace(shop, tiny=own_tiny)
    board = blind.accept({"R1": LIGHT, "R2": DARK})
    blind.decide(board)
    assert blind.state(board).verdict is Verdict.NG
    calls = {call.refdes: call for call in blind.calls(board)}
    assert {refdes: call.verdict for refdes, call in calls.items()} == {"R1": Verdict.REVIEW, "R2": Verdict.NG}
    assert calls["R1"].expert == "body-c"
    assert "accepts: [missing]" in calls["R1"].detail, "the way out"


def test_what_is_missing_at_the_due_time_is_review_and_late_and_later_findings_only_raise(shop):
    shop.device.gate.clear()
    ahead_s = 0.0
    board = shop.accept({"R1": LIGHT, "R2": DARK}, within_s=500)
    with shop.deciding(Clocks(now_s=lambda: time.monotonic() + ahead_s)):
        eventually(shop.device.reached.is_set)
        ahead_s = 1000.0
        eventually(lambda: shop.is_decided(board))
        found = shop.state(board)
        assert (found.verdict, found.late) == (Verdict.REVIEW, True)
        assert [call.reason for call in shop.calls(board)] == [CallReason.LATE] * 2
        shop.device.gate.set()
        eventually(lambda: shop.state(board).verdict is Verdict.NG)
    assert [call.verdict for call in shop.calls(board)] == [Verdict.REVIEW, Verdict.NG]
    assert shop.kinds(board)[-1] is EventKind.BOARD_AMENDED


def test_what_is_found_after_the_due_time_is_late_also_if_the_decision_could_not_be_written_then(shop):
    other = open_database(shop.database.url.render_as_string())
    shop.device.gate.clear()
    ahead_s = 0.0
    board = shop.accept({"R1": LIGHT, "R2": DARK}, within_s=500)
    with shop.deciding(Clocks(now_s=lambda: time.monotonic() + ahead_s)) as station:
        eventually(shop.device.reached.is_set)
        with other.writing() as connection:
            connection.exec_driver_sql("UPDATE board SET reason = reason")
            ahead_s = 1000.0
            eventually(lambda: station.waits_for_database)
            shop.device.gate.set()
            eventually(lambda: not any(run.waiting for run in station._runs.values()))
        eventually(lambda: shop.state(board).verdict is Verdict.NG)
    other.close()
    assert shop.state(board).late
    assert next((call.verdict, call.late) for call in shop.calls(board)) == (Verdict.REVIEW, True)
    assert shop.kinds(board)[-2:] == [EventKind.BOARD_DECIDED, EventKind.BOARD_AMENDED]


def test_a_strategy_that_heeds_no_due_times_inspects_boards_that_have_them(shop):
    board = shop.accept({"R1": LIGHT, "R2": DARK}, within_s=500)
    with shop.deciding(strategy="coserve"):
        eventually(lambda: shop.is_decided(board))
    assert shop.state(board).verdict is Verdict.NG
    assert [call.reason for call in shop.calls(board)] == [CallReason.EXPERT]


def test_a_picture_that_was_changed_on_the_disk_is_review(shop):
    """A dark part whose file now shows a light part would be OK, and nobody would have seen the part."""
    board = shop.accept({"R1": DARK, "R2": LIGHT})
    for file in shop.config.pictures.glob("*/*"):
        if file.is_file() and file.read_bytes() == DARK:
            file.write_bytes(grey(201))
    shop.decide(board)
    assert shop.state(board).verdict is Verdict.REVIEW
    (call,) = shop.calls(board)
    assert (call.refdes, call.reason) == ("R1", CallReason.FAILED)
    assert "changed" in call.detail


def test_an_expert_that_does_not_return_ends_the_line_and_the_next_line_goes_on(shop, monkeypatch):
    """In vain a later board waits for a thread that nothing can end."""
    shop.device.gate.clear()
    ahead_s = 0.0
    monkeypatch.setattr(
        station_module, "line_opener", lambda config, watch: quick_opener(shop.tiny, shop.device, watchers=[watch])
    )
    late = shop.accept({"R1": LIGHT}, within_s=50)
    station = Station(shop.config, shop.database, clocks=Clocks(now_s=lambda: time.monotonic() + ahead_s))
    while not shop.device.reached.is_set():
        station.step()
    # Later: else both could be in one batch.
    waits = shop.accept({"R1": LIGHT}, key="k2")
    ahead_s = 100.0
    station.step()
    assert shop.state(late).late
    assert shop.database.read(states.heartbeats)[Process.WORKER].facts["oldest_batch_s"] >= 100
    ahead_s = 130.0
    with pytest.raises(LineHangs, match="'body-c'"):
        station.step()
    assert [fault.about for fault in shop.faults() if fault.kind is FaultKind.EXPERT_HANGS] == ["body-c"]
    assert not shop.is_decided(waits)
    shop.device.gate.set()
    station.close()
    shop.decide(waits)
    assert shop.verdict(waits) is Verdict.OK
    assert (shop.state(late).verdict, shop.state(late).attempts) == (Verdict.REVIEW, 1)


@pytest.mark.parametrize(("images", "hangs_after_s", "ends_s"), [(5, 120, 200), (1, 60, 120), (1, 150, 150)])
def test_a_batch_hangs_after_many_times_its_forecast(images, hangs_after_s, ends_s):
    line = SimpleNamespace(
        costs=CostTable({("cpu", "slow"): Cost(1.0, 5.0, 1.0, 1, 1)}),
        plan=SimpleNamespace(pools=[], executors=[SimpleNamespace(id="cpu:0", device="cpu")]),
        longest_decoding_s=lambda: 0.0,
    )
    now_s = 0.0
    watch = LineWatch(lambda: now_s, hangs_after_s)
    watch.observe(None, [Run("cpu:0", Batch("slow", tuple(Stage(id, "slow") for id in range(images))))], 0.0)
    now_s = ends_s - 1
    assert watch.hanging(line) is None
    now_s = ends_s + 1
    assert watch.hanging(line) is not None


def test_the_process_of_a_line_that_hangs_waits_for_no_thread(shop, monkeypatch):
    def hang(station, *_):
        raise LineHangs("it does not return")

    def leave(status):
        raise SystemExit(status)

    monkeypatch.setattr(Station, "run", hang)
    monkeypatch.setattr(processes.os, "_exit", leave)
    monkeypatch.setattr(processes.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match=str(processes.HUNG)):
        processes.worker(shop.config)


def test_a_page_that_is_read_while_the_state_changes_shows_the_recipe(shop):
    def told():
        return shop.database.read(states.heartbeats)[Process.WORKER].facts

    shop.database.write(states.beat, Process.WORKER, pid=1, now_us=now_us(), facts={"recipes": ["of another process"]})
    assert shop.recipe.version == 1  # active from here on
    ahead_s = 0.0
    opener, clocks = quick_opener(shop.tiny, shop.device), Clocks(now_s=lambda: time.monotonic() + ahead_s)
    station = Station(shop.config, shop.database, open_line=opener, clocks=clocks)
    station.step()
    assert "recipes" not in told()
    while told().get("recipes") != ["tiny 1"]:
        ahead_s += 0.5
        station.step()
    seen = []
    for key in ("k1", "k2"):
        board = shop.accept({"R1": LIGHT}, key=key)
        while not shop.is_decided(board):
            station.step()
            seen.append(told().get("recipes"))
        for _ in range(8):  # it is quiet long enough to wait, and says so
            ahead_s += 0.5
            station.step()
            seen.append(told().get("recipes"))
    assert set(map(str, seen)) == {"['tiny 1']"}
    station.close()


def test_loads_that_end_one_after_the_other_do_not_hang():
    now_s = 0.0
    watch = LineWatch(lambda: now_s, 60)
    cost = Cost(per_image_s=1, base_s=0, load_s=4, weights_bytes=1, activation_bytes=1, workspace_bytes=0)
    line = SimpleNamespace(
        costs=CostTable({("cpu", expert): cost for expert in "abc"}),
        plan=SimpleNamespace(pools=[SimpleNamespace(id="cpu", device="cpu")], executors=[]),
        longest_decoding_s=lambda: 0.0,
    )

    def hanging():
        hang = watch.hanging(line)
        return hang and hang.expert

    watch.observe(None, [], 0.0)
    watch.observe(Loaded("cpu", "z"), [Load("cpu", expert, Why.DEMAND) for expert in "abc"], 0.0)
    now_s = 79.0
    assert hanging() is None  # 20 times 4 s is later
    watch.observe(Loaded("cpu", "a"), [], 0.0)
    now_s = 158.0
    assert hanging() is None
    watch.observe(LoadFailed("cpu", "b", "torn"), [], 0.0)
    now_s = 300.0
    assert hanging() == "c"
    watch.observe(Lost("cuda:0", "it does not answer"), [], 0.0)
    assert hanging() == "c"  # another device has gone, and the disk is as silent as before
    watch.observe(Loaded("cpu", "c"), [], 0.0)
    assert hanging() is None
    now_s = 1000.0
    watch.observe(Loaded("cpu", "z"), [Load("cpu", "a", Why.DEMAND)], 0.0)
    now_s = 1050.0
    assert hanging() is None  # it began when nothing else was under way


def test_a_batch_that_waits_behind_another_has_not_begun():
    now_s = 0.0
    watch = LineWatch(lambda: now_s, 60)
    runs = [Run("gpu:0", Batch(expert, (Stage(1, expert),))) for expert in ("a", "b")]
    watch.observe(None, [], 0.0)
    watch.observe(Loaded("gpu:0", "a"), list(runs), 0.0)
    now_s = 10.0
    assert watch.running() == [RunningBatch("gpu:0", "a", 1, 10.0)]
    watch.observe(Finished("gpu:0", ()), [], 0.0)
    now_s = 13.0
    assert watch.running() == [RunningBatch("gpu:0", "b", 1, 3.0)]
    watch.observe(RunFailed("gpu:0", "torn"), [], 0.0)
    assert watch.running() == []


def test_a_board_that_is_due_before_its_turn_is_late_as_a_whole(shop):
    board = shop.accept({"R1": LIGHT}, within_s=0.001)
    shop.decide(board)
    assert [call.reason for call in shop.calls(board)] == [CallReason.LATE]
    assert shop.device.batches == []


def test_a_component_without_a_picture_is_review(shop):
    recipe = activated(shop.database, TINY, parts={"R1": "C", "R2": "C"})
    board = shop.accept({"R1": LIGHT}, recipe=recipe)
    shop.decide(board)
    (call,) = shop.calls(board)
    assert (call.refdes, call.verdict, call.reason) == ("R2", Verdict.REVIEW, CallReason.MISSING_VIEW)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EIO, errno.ESTALE])
def test_a_picture_that_cannot_be_read_is_review_and_a_lost_one_is_a_fault(shop, monkeypatch, number):
    board = shop.accept({"R1": LIGHT[:100], "R2": LIGHT, "R3": DARK, "R4": grey(200, side=2)})
    lost = next(path for path in shop.config.pictures.glob("*/*") if path.read_bytes() == DARK)
    lost.unlink()
    stat = Path.stat

    def refuse(path, **more):
        if path == lost:
            raise OSError(number, "no")
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", refuse)
    shop.decide(board)
    assert [(call.refdes, call.verdict, call.reason) for call in shop.calls(board)] == [
        ("R1", Verdict.REVIEW, CallReason.FAILED),
        ("R3", Verdict.REVIEW, CallReason.FAILED),
        ("R4", Verdict.REVIEW, CallReason.FAILED),
    ]
    for call in shop.calls(board):  # not "is truncated", or "has 2 x 2 pixels": nobody would know what is
        assert "picture" in call.detail[:15]
    assert [fault.kind for fault in shop.faults()] == [FaultKind.IMAGE_LOST]


def test_an_aborted_board_gets_no_decision(shop):
    shop.device.gate.clear()
    board = shop.accept({"R1": DARK})
    second = shop.accept({"R1": DARK}, key="k2")
    with shop.deciding():
        eventually(lambda: shop.state(board).state is BoardState.RUNNING)
        assert shop.database.write(board_rows.abort, shop.state(board), now_us(), reason="wrong side")
        shop.device.gate.set()
        eventually(lambda: shop.is_decided(second))
    assert shop.state(board).state is BoardState.ABORTED
    assert shop.calls(board) == []


def test_a_line_that_starts_again_takes_up_the_boards_of_the_one_before(shop):
    begun = shop.accept({"R1": DARK})
    waits = shop.accept({"R1": LIGHT}, key="k2")
    shop.database.write(board_rows.begin, begun.id, now_us())
    shop.decide(begun, waits)
    found = shop.state(begun)
    assert (found.verdict, found.attempts) == (Verdict.NG, 2)


def test_a_board_that_ends_the_line_again_and_again_is_review(shop):
    board = shop.accept({"R1": LIGHT})
    with shop.database.writing() as connection:
        for _ in range(MAX_ATTEMPTS):
            board_rows.begin(connection, board.id, now_us())
    shop.decide(board)
    (call,) = shop.calls(board)
    assert (call.verdict, call.reason) == (Verdict.REVIEW, CallReason.FAILED)
    assert shop.faults()[0].kind is FaultKind.BOARD_FAILED


def test_an_inspector_that_fails_is_opened_again_and_its_boards_are_inspected(shop):
    opened, lines = [], []

    def open_line(boards):
        opened.append(QuickDevice())
        opened[-1].gate.clear()
        lines.append(quick_opener(shop.tiny, opened[-1], inbox=1)(boards))
        return lines[-1]

    board = shop.accept({"R1": LIGHT, "R2": DARK})
    with deciding(shop.config, shop.database, open_line):
        eventually(lambda: bool(opened) and opened[0].reached.is_set())
        lines[0].stop()
        opened[0].gate.set()
        eventually(lambda: len(opened) > 1)
        opened[1].gate.set()
        eventually(lambda: shop.is_decided(board))
    assert shop.state(board).verdict is Verdict.NG
    assert shop.faults()[0].kind is FaultKind.INSPECTOR_FAILED


def test_a_draining_line_finishes_begun_boards_and_leaves_the_others(shop):
    shop.device.gate.clear()
    begun = shop.accept({"R1": LIGHT})
    with shop.deciding():
        eventually(lambda: shop.state(begun).state is BoardState.RUNNING)
        shop.database.write(states.change, Subject.INTAKE, Intake.DRAINING, by="ann", now_us=now_us())
        waits = shop.accept({"R1": LIGHT}, key="k2")
        shop.device.gate.set()
        eventually(lambda: shop.is_decided(begun) and shop.database.read(states.line) is LineState.DRAINED)
        assert shop.state(waits).state is BoardState.ACCEPTED
        shop.database.write(states.change, Subject.INTAKE, Intake.OPEN, by="ann", now_us=now_us())
        eventually(lambda: shop.is_decided(waits))


def test_a_clock_that_jumps_is_told_and_moves_no_due_time(shop):
    shop.device.gate.clear()
    ahead_us = 0
    board = shop.accept({"R1": LIGHT}, within_s=60)
    with shop.deciding(Clocks(now_us=lambda: now_us() + ahead_us)):
        eventually(shop.device.reached.is_set)
        ahead_us = 3600_000_000
        eventually(lambda: bool(shop.faults()))
        shop.device.gate.set()
        eventually(lambda: shop.is_decided(board))
    assert (shop.state(board).verdict, shop.state(board).late) == (Verdict.OK, False)
    assert shop.faults()[0].kind is FaultKind.CLOCK


def test_boards_that_will_be_late_are_named_before_they_are(shop):
    shop.config = shop.config.model_copy(update={"drain_s": 0.1})
    shop.device = QuickDevice(run=[lambda: time.sleep(0.5)] * 1000)
    for number in range(4):
        shop.accept({f"R{n}": LIGHT for n in range(30)}, key=f"k{number}")
    board = shop.accept({f"R{n}": LIGHT for n in range(30)}, key="due", within_s=60)
    with shop.deciding(inbox=1):
        eventually(lambda: EventKind.BOARD_ENDANGERED in shop.kinds(board))
        assert not shop.is_decided(board)


def test_a_lost_device_makes_no_board_ok(shop):
    shop.device = QuickDevice(run=[DeviceLost("the device is gone")] * 10)
    board = shop.accept({"R1": LIGHT})
    shop.decide(board)
    assert shop.state(board).verdict is Verdict.REVIEW
