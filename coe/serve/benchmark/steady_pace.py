"""Boards that come at a steady pace, as a line makes them. A late board delays no other board's time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice

from coe.serve.benchmark.benchmark_figures import Aim, Measured, Part, times_ms
from coe.serve.benchmark.running import BenchmarkPicture, Client, Service, board_of, numbered
from coe.serve.database import board_rows

STUB_LEARNS_S = 300.0
"""How long the stub's first board may take: the networks run once for each picture."""
_WITHIN_S = 60.0
"""How long the last boards may take after their time."""


@dataclass(frozen=True, slots=True)
class BoardPace:
    """How boards come: so many an hour, each of so many components and due within `within_s`, for `seconds`."""

    boards_per_hour: float
    components: int
    within_s: float
    seconds: float
    feeders: int = 4

    @property
    def every_s(self) -> float:
        """The time between two boards."""
        return 3600 / self.boards_per_hour


def pace(service: Service, pictures: Sequence[BenchmarkPicture], wanted: BoardPace) -> list[Measured]:
    """Hand boards in at a steady pace, over several connections, and measure whether the service keeps up."""
    of_board = list(islice(cycle(pictures), wanted.components))
    warm = service.hand_in(f"pace-{time.time_ns()}", of_board)
    service.wait_for([warm], STUB_LEARNS_S)
    feeding = Feeding(service, of_board, wanted)
    number = max(1, round(wanted.seconds / wanted.every_s))
    ids = [feeding.hand_in_next() for _ in range(number)]
    with service.database.reading() as connection:
        backlog = board_rows.count_undecided(connection)
    service.wait_for(ids, _WITHIN_S + wanted.seconds)
    feeding.close()
    with service.database.reading() as connection:
        done = [one for one in (board_rows.get(connection, id) for id in ids) if one is not None]
    decided_s = [(one.decided_us - one.accepted_us) / 1e6 for one in done if one.decided_us]
    late = sum(one.late for one in done)
    about = f"{wanted.boards_per_hour:g} boards/h of {wanted.components} components"
    behind_s = feeding.behind_s
    return [
        Measured(Part.PACE, f"{about}: the last one handed in late by", behind_s, "s", number, Aim(wanted.every_s)),
        Measured(Part.PACE, "boards waiting at the end", backlog, "", number, Aim(2)),
        Measured(Part.PACE, "late boards", late, "", number, Aim(0)),
        *times_ms(Part.PACE, "a board handed in", feeding.took_s, None),
        *times_ms(Part.PACE, "accepted to decided", decided_s, 1e3 * wanted.within_s),
    ]


class Feeding:
    """Hands boards in, each at its time, over several connections at once."""

    def __init__(self, service: Service, pictures: Sequence[BenchmarkPicture], wanted: BoardPace) -> None:
        self._service, self._pictures, self._wanted = service, pictures, wanted
        self._contents = [numbered(picture.path.read_bytes(), number) for number, picture in enumerate(pictures)]
        self._threads = ThreadPoolExecutor(wanted.feeders, "feeder")
        self._local = threading.local()
        self._clients: list[Client] = []
        self._begun_s = time.perf_counter()
        self._number = 0
        self.took_s: list[float] = []
        self.behind_s = 0.0

    def hand_in_next(self) -> int:
        """Wait for the next board's time, hand it in, and return its id."""
        at_s = self._begun_s + self._number * self._wanted.every_s
        time.sleep(max(0.0, at_s - time.perf_counter()))
        began_s = time.perf_counter()
        key = f"pace-{time.time_ns()}"
        list(self._threads.map(lambda number: self._put(key, number), range(len(self._contents))))
        body = board_of(self._service.recipe, self._pictures, self._wanted.within_s)
        answer = self._threads.submit(lambda: self._client().post_board(key, body)).result()
        now_s = time.perf_counter()
        self.took_s.append(now_s - began_s)
        self.behind_s = now_s - at_s
        self._number += 1
        return int(answer.data["board"])

    def _put(self, key: str, number: int) -> None:
        self._client().put(key, f"P{number}", self._contents[number])

    def _client(self) -> Client:
        if not hasattr(self._local, "client"):
            self._local.client = self._service.client("feeder")
            self._clients.append(self._local.client)
        client: Client = self._local.client
        return client

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        for client in self._clients:
            client.close()
