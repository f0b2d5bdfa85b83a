"""A factory line on the public API: cameras deliver frames, verdicts come out board by board, in real time.

    python -m apps.factory_line.line --board demo --images build/demo/images --rate 20

Each picture under --images stands for a frame that a camera delivers in real time. The program shows what an
integrator has to write: submit frames without waiting, answer a conveyor once a board is complete, and end properly.

With --parts FILE a board passes only if each part of the list has a picture.

A board passes only if every picture of it was judged OK. Decisions read the fields of results; sentences are for
people. The exit status is that of coe-inspect: 0 all boards are OK, 1 a board is NG or REVIEW, 2 wrong usage, 3 some
pictures could not be inspected, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coe import Expected, Inspector
from coe.board import rules
from coe.cli.common import Exit, err, guarded, out
from coe.core import Failure, FailureKind, Request, Result, Verdict, worst
from coe.errors import CoeError
from coe.pictures import finding, photographs

NAMED = 6
"""Most places that are named for a board that is not OK."""


@dataclass(frozen=True, slots=True)
class FinishedBoard:
    """A board with a result for every picture. `serial` is empty for pictures that belong to no board.

    `lacking` are the parts without a picture.
    """

    serial: str
    results: tuple[Result, ...]
    lacking: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict; a part that could not be judged makes the board REVIEW at best, never OK."""
        unseen = [Verdict.REVIEW] if self.lacking else []
        return worst([*unseen, *(result.verdict or Verdict.REVIEW for result in self.results)])

    @property
    def not_inspected(self) -> int:
        """How many pictures have no verdict."""
        return sum(result.verdict is None for result in self.results)

    def __str__(self) -> str:
        places = [
            result.request.refdes or result.request.image for result in self.results if result.verdict is not Verdict.OK
        ]
        named = f" ({', '.join(places[:NAMED])}{' ...' if len(places) > NAMED else ''})" if places else ""
        missing = f", {self.not_inspected} of them not inspected" if self.not_inspected else ""
        lacking = f", no picture of {', '.join(self.lacking)}" if self.lacking else ""
        slowest_s = max((result.latency_s for result in self.results), default=0.0)
        name = f"board {self.serial}" if self.serial else "pictures of no board"
        return f"{name}: {self.verdict}{named}, {len(self.results)} images{missing}{lacking}, slowest {slowest_s:.2f} s"


class Conveyor:
    """Collects the results of each board, and returns the board with its last result.

    `expected` is the number of pictures by serial, with those that cannot be inspected. `asked` says which parts each
    board must show.
    """

    def __init__(self, expected: Counter[str], asked: Expected | None = None) -> None:
        self._expected, self._asked = expected, asked
        self._results: dict[str, list[Result]] = defaultdict(list)

    def take(self, result: Result) -> FinishedBoard | None:
        """Take in one result; return its board if it is complete now."""
        serial = result.request.serial
        self._results[serial].append(result)
        if len(self._results[serial]) < self._expected[serial]:
            return None
        return self.board(serial, self._results.pop(serial))

    def board(self, serial: str, results: Sequence[Result] = ()) -> FinishedBoard:
        """Return a board with all its results, and the parts that none of them shows."""
        requests = [result.request for result in results]
        if self._asked is None or not (serial or any(request.refdes for request in requests)):
            return FinishedBoard(serial, tuple(results))
        lacking = tuple(part.refdes for part in self._asked.lacking(requests))
        return FinishedBoard(serial, tuple(results), lacking)


def unseen(item: photographs.Photograph, failure: Failure) -> Result:
    """Return the result of a picture that never reaches the line: it counts for its board, and it is no pass."""
    return Result(Request(-1, item.component, item.name, item.serial, item.refdes), None, (), 0.0, failure)


def status(boards: Sequence[FinishedBoard]) -> Exit:
    """Return the exit status for boards, as coe-inspect's."""
    if any(board.not_inspected for board in boards):
        return Exit.NOT_INSPECTED
    return Exit.OK if worst([board.verdict for board in boards]) is Verdict.OK else Exit.NOT_GOOD


async def run(
    board: str, source: Path, *, store: Path | None, memory: str, rate: float, parts: Path | None = None
) -> list[FinishedBoard]:
    """Feed frames at `rate` a second, print each board once it is complete, and return the boards in that order."""
    items, skipped = finding.find(source, rules.load(board).components)
    for other in skipped:
        err.print(f"skipped: {other.path} ({other.reason})", soft_wrap=True)
    asked = Expected.of_parts(parts) if parts is not None else None
    conveyor = Conveyor(Counter(item.serial for item in items), asked)
    boards: list[FinishedBoard] = []

    def deliver(result: Result) -> None:
        if result.error is not None:
            err.print(f"not inspected: {result.request.image}: {result.error}", soft_wrap=True)
        if complete := conveyor.take(result):
            boards.append(complete)
            out.print(str(complete), soft_wrap=True)

    listed = asked.parts if asked is not None else None
    say = partial(err.print, soft_wrap=True)
    with Inspector(board, store=store, memory=memory, parts=listed, say=say) as line:
        # An empty folder is a board of which no picture came.
        for serial in [other.serial for other in skipped if other.serial and asked is not None]:
            boards.append(conveyor.board(serial))
            out.print(str(boards[-1]), soft_wrap=True)

        async def frame(item: photographs.Photograph) -> None:
            if item.failure is not None:
                return deliver(unseen(item, item.failure))
            about = {"serial": item.serial, "refdes": item.refdes, "name": item.name}
            try:
                result = await line.inspect(item.path, item.component, **about)
            except CoeError as error:  # the line did not take it
                result = unseen(item, Failure(FailureKind.LINE, str(error)))
            deliver(result)

        began = time.monotonic()
        async with asyncio.TaskGroup() as frames:
            for index, item in enumerate(items):
                await asyncio.sleep(max(0.0, began + index / rate - time.monotonic()))
                frames.create_task(frame(item))
        metrics = line.metrics()
    out.print(
        f"{metrics.images} images, {metrics.images_per_s:.1f} images/s, {metrics.switches} switches", soft_wrap=True
    )
    return boards


def _rate(text: str) -> float:
    rate = float(text)
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(text)  # argparse makes the sentence
    return rate


def inspect() -> Exit:
    """Read the options and run the line; raises CoeError if it cannot run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="demo", help="a name or a YAML file (default: demo)")
    parser.add_argument("--images", type=Path, default=Path("build/demo/images"), help="folder of pictures")
    parser.add_argument("--store", type=Path, help="folder of the experts (default: $COE_STORE, or ./store)")
    parser.add_argument("--memory", default="150MB", help="memory for experts and activations (default: 150MB)")
    parser.add_argument("--rate", type=_rate, default=20.0, help="frames per second (default: 20)")
    parser.add_argument("--parts", type=Path, help="parts list; a board that lacks a picture of a part does not pass")
    given = parser.parse_args()
    boards = asyncio.run(
        run(given.board, given.images, store=given.store, memory=given.memory, rate=given.rate, parts=given.parts)
    )
    return status(boards)


def main() -> None:
    """Run the command; an error ends in a sentence and an exit status."""
    raise SystemExit(guarded(inspect))


if __name__ == "__main__":
    main()
