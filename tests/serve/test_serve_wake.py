"""Bells between the processes of a service: a ring makes somebody look, and a lost ring loses nothing but time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from quick_line import QuickDevice
from serving import Served, hand_in
from stations import deciding, quick_opener

from coe.serve import wake
from coe.serve.database.connecting import open_database
from coe.serve.gate import feed_routes
from coe.serve.wake import Bell


def test_who_waits_hears_others_and_itself(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    assert not bell.wait(0)
    bell.ring()
    assert not bell.wait(60)  # it returns at once; nobody else rang
    bell.ring()
    assert wake.ring(tmp_path / "bell")
    assert wake.ring(tmp_path / "bell")
    assert bell.wait(60)
    assert not bell.wait(0)  # all rings before are heard together
    bell.close()


def test_a_bell_that_nobody_hears_is_rung_in_vain(tmp_path: Path) -> None:
    assert not wake.ring(tmp_path / "bell")
    (tmp_path / "bell").write_text("torn")
    assert not wake.ring(tmp_path / "bell")
    Bell(tmp_path / "bell").close()
    wake.ring(tmp_path / "bell")  # its port is closed, and the next process takes another


def test_a_bell_that_is_full_of_rings_holds_nobody_up(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    for _ in range(5000):
        bell.ring()
    assert not bell.wait(0)
    bell.close()


def test_a_program_that_never_stops_ringing_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "_TOGETHER", 3)
    bell = Bell(tmp_path / "bell")
    for _ in range(5):
        wake.ring(tmp_path / "bell")
    assert [bell.wait(0) for _ in range(3)] == [True, True, False]
    bell.close()


def test_who_cannot_write_its_port_looks_by_itself(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "no folder" / "bell")
    bell.ring()
    assert not bell.wait(60)
    bell.close()


def test_only_this_machine_can_ring(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    assert bell._socket.getsockname()[0] == "127.0.0.1"
    bell.close()


def test_an_event_loop_hears_rings_until_it_ends(tmp_path: Path) -> None:
    async def hear() -> int:
        heard: asyncio.Queue[None] = asyncio.Queue()
        transport = await wake.heard(tmp_path / "bell", lambda: heard.put_nowait(None))
        wake.ring(tmp_path / "bell")
        await asyncio.wait_for(heard.get(), 60)
        transport.close()
        await asyncio.sleep(0)
        return heard.qsize()

    assert asyncio.run(hear()) == 0


def test_a_decision_of_the_line_reaches_a_client_that_waits_without_any_look(
    served: Served, tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_S", "IDLE_LOOK_S"):
        monkeypatch.setattr(feed_routes, name, 3600)
    # A line has its own connections, as a process has.
    database = open_database(served.gate.config.database_url)
    with deciding(served.gate.config, database, quick_opener(tiny, QuickDevice())):
        board = hand_in(served.feeder, "k1", {"R1": "C"}).json()["board"]
        decided = served.operator.get(f"/api/v1/boards/{board}?wait=20").json()
    assert decided["verdict"] is not None
    database.close()
