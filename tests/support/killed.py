"""Processes of a service that end by kill -9 at a labelled point, forked from a process that has torch loaded."""

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx
from quick_line import QuickDevice
from serving import client_of, put
from stations import quick_opener

from coe.serve import failpoints, processes
from coe.serve.bridge.sinks import SinkConnection, SinkSettings
from coe.serve.clock import Clocks, now_us
from coe.serve.database import board_rows, call_rows, event_log, keys
from coe.serve.database.connecting import open_database
from coe.serve.enums import EventKind, Role
from coe.serve.failpoints import Failpoint
from coe.serve.worker.station import Station

KILLED = -signal.SIGKILL
LEAST_KILLS = int(os.environ.get("COE_TEST_KILLS", "200"))
ALL = 1 << 40
"""More rows than any test makes: how many boards come while processes are killed depends on the machine."""
PRELOADED = [
    "coe.inspector.line",
    "coe.serve.gate.server",
    "coe.serve.worker.station",
    # A line imports them when it opens, which takes seconds.
    "experts.resnet",
    "experts.yolov5",
    "networkx",
]
GATE_POINTS = (
    Failpoint.VIEW_RECEIVED,
    Failpoint.VIEW_KEPT,
    Failpoint.VIEW_COMMITTED,
    Failpoint.BOARD_CHECKED,
    Failpoint.BOARD_ACCEPTED,
)


def forks():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def begin_forks():
    assert status_of(start(forks)) == 0


def kill_at(point, nth):
    """End this process at the `nth` time that it reaches a point, as a loss of power would."""
    left = nth

    def hook(reached):
        nonlocal left
        if reached is point:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = hook


def start(work, *arguments):
    process = forks().Process(target=work, args=arguments)
    process.start()
    return process


def decide_all(config, tiny, point, nth):
    """Run a line until no board is undecided, or until the point."""
    kill_at(point, nth)
    _decide(config, tiny, QuickDevice(), Clocks())


def decide_late(config, tiny, point):
    """Run a line whose boards are all due before their findings come, until the point."""
    device, ahead_s = QuickDevice(), 0.0
    device.gate.clear()
    kill_at(point, 1)
    kill = failpoints.hook

    def hook(reached):
        nonlocal ahead_s
        kill(reached)
        if reached is Failpoint.SUBMITTED:
            ahead_s = 1000.0
        elif reached is Failpoint.DECIDED:
            device.gate.set()

    failpoints.hook = hook
    _decide(config, tiny, device, Clocks(now_s=lambda: time.monotonic() + ahead_s))


def _decide(config, tiny, device, clocks):
    database = open_database(config.database_url)
    # Without threads the line would watch the cores of the machine first.
    station = Station(config, database, open_line=quick_opener(tiny, device, threads=1), clocks=clocks)
    while undecided(database) or not station.is_idle:
        station.step()
    station.close()
    database.close()


def undecided(database):
    return database.read(board_rows.count_undecided)


def run_line(config, tiny, point=None, nth=1):
    return status_of(start(decide_all, config, tiny, point, nth))


def status_of(process):
    process.join(1000)
    return process.exitcode


def serve_gate(config, point, nth):
    kill_at(point, nth)
    processes.web(config)


class FileSettings(SinkSettings):
    """A machine that writes down what it is told."""

    file: Path

    def connection(self, origin):
        return FileSink(self.file)


class FileSink(SinkConnection):
    def __init__(self, path):
        self._path = path

    def send(self, message):
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([message.id, message.name, message.body["number"]]) + "\n")


def told_to(file):
    return {"killed:FileSettings": {"plant": {"file": file}}}


def decisions(database):
    with database.reading() as connection:
        return {
            board.key: (
                board.verdict,
                tuple((call.refdes, call.verdict, call.label) for call in call_rows.of_board(connection, board.id)),
            )
            for board in reversed(board_rows.newest(connection, limit=ALL))
        }


def check_one_decision_each(database):
    with database.reading() as connection:
        told = Counter(
            event.board_id
            for event in event_log.after(connection, 0, limit=ALL)
            if event.kind is EventKind.BOARD_DECIDED
        )
        assert board_rows.count_undecided(connection) == 0
        assert told == Counter(board.id for board in board_rows.newest(connection, limit=ALL))


def free_port():
    """Return a port at which nobody listens, below those that the system gives to clients.

    A client that tries such a port again and again may connect to itself, and then the gate cannot have it.
    """
    for port in Random().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Feeder(threading.Thread):
    """Does what a feeder does: hands a board in from the beginning until 202 is said, whichever gate says it."""

    def __init__(self, address, api_key, board, pictures, body):
        super().__init__(daemon=True)
        self._client = client_of(address, api_key)
        self._board, self._pictures, self._body = board, pictures, body

    def run(self):
        with self._client:
            while not self._is_accepted():
                time.sleep(0.05)  # the gate that is to come needs the processor

    def _is_accepted(self):
        with suppress(httpx.TransportError):
            put_all = [put(self._client, self._board, name, content) for name, content in self._pictures.items()]
            path = f"/api/v1/boards/{self._board}"
            return all(answer.is_success for answer in put_all) and (
                self._client.post(path, json=self._body).status_code == 202
            )
        return False


def views_of(pictures):
    return {refdes: {"refdes": refdes, "component": "C"} for refdes in pictures}


def add_feeder(database):
    key = keys.generate()
    database.write(keys.add, "feeder", Role.FEEDER, key, now_us=now_us())
    return key


def hand_in_while_the_gate_is_killed(config, feeder, kills):
    """Let a board be accepted by the last of several gates; each of the others is killed at its point."""
    feeder.start()
    for point in kills:
        assert status_of(start(serve_gate, config, point, 1)) == KILLED
    last = start(serve_gate, config, None, 1)
    feeder.join()
    last.terminate()
    status_of(last)
