"""This process's connection with a Ray cluster, and the calls of a line's threads, which end soon after the line does.

Ray is left only when no line, and no thread of one, uses it.

A call of Ray without a connection would silently connect anew. So each call passes a `CallGate`, which closes
before Ray is left.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from coe.cluster.links import BoxGone
from coe.errors import ConfigError, first_line

_CONNECT_S, _LAST_PORT = 5.0, 65535
"""The longest time until the head node answers the first bytes, and the first question."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", 0)[1:] + bytes([4, 0]) + struct.pack(">I", 0)
"""What a client of gRPC says first; a server answers with a frame of the same type, 4."""
_SETTINGS = 4
_LOOK_UP_S = 2.0
"""A call that waits looks whether the line ends once in this time, in seconds."""
_WAYOUT = (
    "this machine must be part of the cluster: start Ray with `ray start --head` on the first machine, and with "
    "`ray start --address=HOST:6379` on each other machine"
)


class RaySession:
    """A line's use of Ray; `ray` is the module. Lines of one process share the connection, and the last one ends it."""

    _lock = threading.Lock()
    _lines = 0
    _is_ours = False
    """Whether a line has connected this process; otherwise it stays connected."""

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError(
                "several boxes need Ray, which is not installed here; get it with: pip install 'coe-vision[cluster]'"
            ) from None
        with RaySession._lock:
            if not ray.is_initialized():
                _connect(ray, address)
                RaySession._is_ours, RaySession._lines = True, 0
            elif address not in ("auto", here := ray.get_runtime_context().gcs_address):
                raise ConfigError(
                    f"this process is already connected to the Ray cluster at {here}; give cluster='auto' to use that"
                )
            RaySession._lines += 1
        self.ray: Any = ray

    def leave(self) -> None:
        """End the use of Ray; call it once, after the line's last call of Ray."""
        with RaySession._lock:
            RaySession._lines -= 1
            if RaySession._is_ours and not RaySession._lines:
                RaySession._is_ours = False
                self.ray.shutdown()


class CallGate:
    """Counts the calls of Ray that a line makes at the moment; once it is closed, no call begins."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._inside, self.is_closed = ray, 0, False
        self._changed = threading.Condition()

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Call Ray in this block; raises BoxGone if the gate is closed, or if Ray was left by others."""
        with self._changed:
            if self.is_closed or not self._ray.is_initialized():
                raise BoxGone("this process has left the Ray cluster")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self, wait_s: float) -> bool:
        """Let no call begin any more, and wait for those that run; return whether all have ended in time."""
        with self._changed:
            self.is_closed = True
            return self._changed.wait_for(lambda: not self._inside, wait_s)


@dataclass(frozen=True, slots=True)
class RayMachine:
    """A node of the Ray cluster, and how many GPUs it has."""

    id: str
    address: str
    gpus: float


class Calls:
    """Calls of Ray, which end early when the line ends."""

    def __init__(self, ray: Any) -> None:
        self.ray, self.gate, self.closing = ray, CallGate(ray), threading.Event()

    @property
    def timeout(self) -> type[Exception]:
        """What `answer` raises if nothing came in time."""
        timeout: type[Exception] = self.ray.exceptions.GetTimeoutError
        return timeout

    def answer(self, method: Any, *arguments: object, wait_s: float, even_at_the_end: bool = False) -> Any:
        """Call a method of an actor and return its answer; raises what Ray raises, and BoxGone when the line ends."""
        until_s = time.monotonic() + wait_s
        with self.gate.passed():
            answer = method.remote(*arguments)
            while (left_s := until_s - time.monotonic()) > _LOOK_UP_S:
                with suppress(self.timeout):
                    return self.ray.get(answer, timeout=_LOOK_UP_S)
                if self.closing.is_set() and not even_at_the_end:
                    raise BoxGone("the line has ended")
            return self.ray.get(answer, timeout=max(0.0, left_s))

    def unanswered(self, answers: list[Any]) -> list[Any]:
        """Return the answers that have not come; raises what one of the others says went wrong."""
        with self.gate.passed():
            come, rest = self.ray.wait(answers, num_returns=len(answers), timeout=0)
            self.ray.get(come)
        return list(rest)

    def lives(self, machine: RayMachine) -> bool:
        """Tell whether a machine lives, as far as Ray knows."""
        return any(other.id == machine.id for other in self.machines())

    def machines(self) -> list[RayMachine]:
        """Return the machines that live and have processors, in the order of their names."""
        try:
            with self.gate.passed():
                nodes = [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        except Exception:  # the head node of Ray does not answer; boxes may
            return []
        gpus = {node["NodeID"]: node["Resources"].get("GPU", 0) for node in nodes}
        machines = [RayMachine(node["NodeID"], node["NodeManagerAddress"], gpus[node["NodeID"]]) for node in nodes]
        return sorted(machines, key=lambda machine: (machine.address, machine.id))


def _connect(ray: Any, address: str) -> None:
    if address != "auto":
        _expect_head_node(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        if "ersion mismatch" in str(error):
            words = " ".join(str(error).split())
            raise ConfigError(f"this machine and the cluster differ: {words}; install the same versions") from None
        raise ConfigError(f"no Ray cluster answers at '{address}' ({first_line(error)}); {_WAYOUT}") from None
    _say_nothing_of_workers()


def _say_nothing_of_workers() -> None:
    """Keep what Ray says of processes that died off standard output: results may go there, and lines say it too."""
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *arguments, **options: None


def _expect_head_node(address: str) -> None:
    """Raise ConfigError for an address at which no head node of Ray listens: Ray would wait there for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ConfigError(f"cluster='{address}': give 'auto', or the address of the head node as HOST:6379")
    try:
        with closing(socket.create_connection((host, int(port)), _CONNECT_S)) as connection:
            speaks_grpc = _speaks_grpc(connection)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"nothing answers at '{address}' ({error}); {_WAYOUT}") from None
    if not (speaks_grpc and _answers_as_head_node(address)):
        raise ConfigError(f"the program at '{address}' is not the head node of a Ray cluster; {_WAYOUT}")


def _speaks_grpc(connection: socket.socket) -> bool:
    until_s, heard = time.monotonic() + _CONNECT_S, b""
    with suppress(OSError):
        connection.sendall(_PREFACE)
        while len(heard) <= _SETTINGS and (left_s := until_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            if not (more := connection.recv(64)):
                break
            heard += more
    return len(heard) > 3 and heard[3] == _SETTINGS


def _answers_as_head_node(address: str) -> bool:
    from ray import _raylet

    ask_for_id = getattr(_raylet, "GcsClient", None)
    if ask_for_id is None:  # another version of Ray, whose `init` asks
        return True
    is_head = threading.Event()

    def ask() -> None:
        with suppress(Exception):
            ask_for_id(address=address)
            is_head.set()

    # It cannot be interrupted, and gives up after 40 s.
    threading.Thread(target=ask, daemon=True, name="coe-asks-head-node").start()
    return is_head.wait(_CONNECT_S)
