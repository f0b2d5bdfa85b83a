"""What a line runs with: what its user says, else what this machine's profile chose, else the defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coe import config, values
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.errors import ConfigError
from coe.inspector import fingerprint, profile
from coe.inspector.profile import Profile

AUTO = "auto"
"""Use the profile that lies where `coe-profile` puts it, if there is one that fits."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Executors, their threads and the workspace of their pools by device, and the memory of all that share the host's.

    A device without threads gets an equal part of the cores, one without a workspace what
    `coe.scheduler.plan` reserves or what the memory score `loaded` leaves. A GPU has `device_bytes` of its own, and
    `host_bytes` of the host's keep copies for it; None is a default that depends on what is free.
    """

    memory_bytes: int
    executors: Mapping[str, int]
    threads: Mapping[str, int] = field(default_factory=dict)
    workspace_bytes: Mapping[str, int] = field(default_factory=dict)
    profile: Profile | None = None
    loaded: float | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None


def check_threads(threads: object) -> int:
    """Return the threads of each executor; raises ConfigError."""
    return values.whole("threads", threads, least=1, most=config.MAX_THREADS)


def check_loaded(loaded: object) -> float:
    """Return how many experts the memory is to hold; raises ConfigError for what no memory can hold."""
    return values.real("loaded", loaded, least=config.MIN_LOADED, most=config.MAX_LOADED)


def check_inbox(images: object, inbox_bytes: object | None) -> None:
    """Raise ConfigError for a number of images, or of their bytes, that cannot bound what is under way."""
    values.whole("inbox", images, least=1, most=config.MAX_INBOX)
    if inbox_bytes is not None:
        values.whole("inbox_bytes", inbox_bytes, least=1, most=config.MAX_BYTES * 4)


def check_types(
    *, board: object, say: object, watchers: object, make_devices: object, make_decider: object, profile: object
) -> None:
    """Raise ConfigError for an argument of a line that is of another type than it must be."""
    if not isinstance(board, str | Path) or not str(board):
        raise ConfigError(f"board={values.shown(board)}: give the name of a board, or the path of its file")
    for name, function in (("say", say), ("make_devices", make_devices), ("make_decider", make_decider)):
        if not callable(function):
            raise ConfigError(f"{name}={values.shown(function)}: give a function")
    if not isinstance(watchers, Sequence) or not all(hasattr(watcher, "observe") for watcher in watchers):
        raise ConfigError(f"watchers={values.shown(watchers)}: give a list of objects that `observe`")
    if profile is not None and not isinstance(profile, Profile | Path | str):
        raise ConfigError(f"profile={values.shown(profile)}: give a profile, the path of one, '{AUTO}' or None")


def settle(
    board: Rules,
    *,
    memory: int | str | None,
    executors: str | None,
    threads: int | None = None,
    loaded: float | None = None,
    device_memory: int | str | None = None,
    host_memory: int | str | None = None,
    single: bool,
    source: Profile | Path | str | None,
    say: Callable[[str], None],
) -> Settings:
    """Put together what was said and what was found out; `single` leaves the first device one executor.

    `source` is a profile, the path of one, "auto" or None. What the user says about memory, executors, the threads of
    each or the experts to keep loaded is kept, and the profile's split, which was made for others, is then left aside.
    Raises ConfigError for a profile that was named and cannot be used, or memories of a GPU that has no executors; a
    profile that was only found is passed over with a warning.
    """
    if threads is not None:
        check_threads(threads)
    if loaded is not None:
        check_loaded(loaded)
    said_bytes = None if memory is None else values.amount("memory", memory)
    device_bytes = None if device_memory is None else values.amount("device_memory", device_memory)
    host_bytes = None if host_memory is None else values.amount("host_memory", host_memory)
    if executors is not None:
        values.text("executors", executors)
    said = config.parse_executors(executors) if executors is not None else None
    found = _find(source, say)
    known = found.boards.get(board.board) if found else None
    if known and known.digest != board.digest:
        say(f"{board.path.name} has changed since it was profiled; run coe-profile --board {board.board} again")
        known = None
    numbers = said or (known.chosen.executors if known else config.parse_executors(config.EXECUTORS))
    if (device_bytes, host_bytes) != (None, None) and "cuda" not in numbers:
        raise ConfigError(
            "device memory and host memory are for executors of a GPU, and none were asked for; "
            "give --executors cuda=1 too, or leave --device-memory and --host-memory out"
        )
    if single:
        numbers = {next(iter(numbers)): 1}
    if known and "cuda" in numbers:
        device_bytes = known.device_bytes if device_bytes is None else device_bytes
        host_bytes = known.host_bytes if host_bytes is None else host_bytes
    if known is None or single:
        default = known.memory_bytes if known else config.parse_bytes(config.MEMORY)
        return Settings(
            memory_bytes=default if said_bytes is None else said_bytes,
            executors=numbers,
            threads=_each(numbers, threads),
            profile=found,
            loaded=loaded,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
        )
    chosen = known.chosen
    same = dict(numbers) == dict(chosen.executors) and threads is None
    fits = same and said_bytes in (None, known.memory_bytes) and loaded is None
    settings = Settings(
        known.memory_bytes if said_bytes is None else said_bytes,
        numbers,
        chosen.threads if same else _each(numbers, threads),
        chosen.workspace_bytes if fits else {},
        found,
        loaded,
        device_bytes,
        host_bytes,
    )
    numbers_text = ",".join(f"{device}={number}" for device, number in settings.executors.items())
    made = found.made[:10] if found else ""
    say(f"using this machine's profile of {made}: {numbers_text}, {format_bytes(settings.memory_bytes)} of memory")
    return settings


def _each(numbers: Mapping[str, int], threads: int | None) -> dict[str, int]:
    return {} if threads is None else dict.fromkeys(numbers, threads)


def _find(source: Profile | Path | str | None, say: Callable[[str], None]) -> Profile | None:
    if source is None or isinstance(source, Profile):
        return source
    try:
        path = profile.place() if source == AUTO else Path(source)
    except ConfigError:  # nowhere that it could lie
        return None
    if source == AUTO and not os.path.exists(path):  # `Path.exists` raises where nobody may look
        return None
    try:
        found = profile.load(path)
        if changed := fingerprint.differences(found.machine, fingerprint.here()):
            raise ConfigError(
                f"the profile at {path} does not fit this machine any more ({'; '.join(changed)}); "
                "run coe-profile again"
            )
    except ConfigError as error:
        if source != AUTO:
            raise
        say(f"warning: {error}; going on without it")
        return None
    return found
