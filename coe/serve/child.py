"""`python -m coe.serve.child gate CONFIG`: a process of the service, started by the supervisor.

With `-` behind it, the config comes on standard input, as the supervisor has read it: one that is edited meanwhile is
that of the next start, and all processes of a service have the same. The process ends in order when its standard input
ends, because then the supervisor is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from pathlib import Path

from coe.errors import CoeError
from coe.serve.enums import Process
from coe.serve.service_config import ServeConfig, load


def run(process: Process, config: ServeConfig) -> None:
    """Run a process until it is told to end; raises CoeError if it cannot begin."""
    # Imported here: the gate needs no torch, and the worker no HTTP.
    if process is Process.GATE:
        import asyncio

        from coe.serve.gate import server

        asyncio.run(server.serve(config))
    elif process is Process.WORKER:
        from coe.serve.worker import worker_process as worker

        worker.run(config)
    elif process is Process.BRIDGE:
        from coe.serve.bridge import outbox_relay as bridge

        bridge.run(config)
    else:
        raise AssertionError(f"{process} is not started by itself")


def end_with_parent() -> None:
    """Wait until standard input ends, and end this process in order; then nobody reads its log any more."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    with open(os.devnull, "wb") as nobody:
        os.dup2(nobody.fileno(), 2)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the process that the arguments name."""
    try:
        is_of_supervisor = sys.argv[-1] == "-"
        config = pickle.load(sys.stdin.buffer) if is_of_supervisor else load(Path(sys.argv[2]))
        threading.Thread(target=end_with_parent, daemon=True).start()
        run(Process(sys.argv[1]), config)
    except CoeError as error:
        sys.stderr.write(f"{sys.argv[1]}: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
