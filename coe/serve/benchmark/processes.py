"""`python -m coe.serve.benchmark.processes supervisor CONFIG STAMPS DEVICE`: the service that is measured.

Its processes are those of `coe-serve run`, but that the line writes down when findings and decisions are there, and
that its device may be one that takes no time. Nothing else differs from what users run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path

from coe.inspector.line_options import LineOptions
from coe.scheduler.events import Reply
from coe.serve import failpoints
from coe.serve.child import end_with_parent
from coe.serve.children import command_of
from coe.serve.enums import Process
from coe.serve.failpoints import Failpoint
from coe.serve.service_config import load
from coe.serve.supervisor import Supervisor


class BenchDevice(StrEnum):
    """What runs the experts: this machine, or a device that remembers what they answered and takes no time."""

    REAL = "real"
    STUB = "stub"


class Stamp(StrEnum):
    """What a line of the file of stamps tells."""

    FOUND = "found"
    """A component has its result; the line names the board."""
    DECIDED = "decided"
    """The decision of a board is committed; boards are decided in the order of their events."""


class Stamps:
    """Writes a line for each moment: what happened, the time in seconds since 1970, and the board if it is known."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def observe(self, event: object, commands: Sequence[object], now: float, control_s: float = 0.0) -> None:
        """Note the results among the commands of a step of the line."""
        moment_s = time.time()
        for command in commands:
            if isinstance(command, Reply):
                self._write(f"{Stamp.FOUND} {moment_s:.6f} {command.result.request.serial}\n")

    def reached(self, point: Failpoint) -> None:
        """Note the decisions among the labelled points."""
        if point is Failpoint.DECIDED:
            self._write(f"{Stamp.DECIDED} {time.time():.6f} 0\n")
            with self._lock:
                self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _write(self, line: str) -> None:
        with self._lock:
            self._file.write(line)


def supervisor(config: Path, stamps: Path, device: BenchDevice) -> None:
    """Run the service until SIGTERM."""

    def command(process: Process, path: Path) -> Sequence[str]:
        if process is Process.WORKER:
            return [sys.executable, "-m", __spec__.name, "worker", str(path), str(stamps), device.value]
        return command_of(process, path)

    Supervisor(config, command=command).run()


def worker(path: Path, stamps_path: Path, device: BenchDevice) -> None:
    """Run the worker until SIGTERM."""
    from coe.serve.worker import worker_process

    stamps = Stamps(stamps_path)
    failpoints.hook = stamps.reached

    def adjust(line_options: LineOptions) -> LineOptions:
        from coe.profiler.remembered_device import RememberedOutputs, devices

        stub = devices(RememberedOutputs()) if device is BenchDevice.STUB else line_options.make_devices
        return line_options.but(watchers=[*line_options.watchers, stamps], make_devices=stub)

    try:
        worker_process.run(load(path), adjust)
    finally:
        stamps.close()


def main() -> None:
    """Run the process that the arguments name; it ends when its standard input ends."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    run = {"supervisor": supervisor, "worker": worker}[sys.argv[1]]
    partial(run, Path(sys.argv[2]), Path(sys.argv[3]), BenchDevice(sys.argv[4]))()


if __name__ == "__main__":
    main()
