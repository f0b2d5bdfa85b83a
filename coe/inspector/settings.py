"""What a line runs with: what its user says, else what this machine's profile chose, else the defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coe import config
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.errors import ConfigError
from coe.inspector import fingerprint, profile
from coe.inspector.line_config import AUTO, AskedSettings
from coe.inspector.profile import Profile


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


def settle(board: Rules, asked: AskedSettings, *, single: bool, say: Callable[[str], None]) -> Settings:
    """Put together what was asked for and what was found out; `single` leaves the first device one executor.

    What the user asks for of memory, executors, the threads of each or the experts to keep loaded is kept, and the
    profile's split, which was made for others, is then left aside.
    Raises ConfigError for a profile that was named and cannot be used, or memories of a GPU that has no executors; a
    profile that was only found is passed over with a warning.
    """
    threads, loaded = asked.threads, asked.loaded
    device_bytes, host_bytes = asked.device_bytes, asked.host_bytes
    found = _find(asked.profile, say)
    known = found.boards.get(board.board) if found else None
    if known and known.digest != board.digest:
        say(f"{board.path.name} has changed since it was profiled; run coe-profile --board {board.board} again")
        known = None
    numbers = asked.executors or (known.chosen.executors if known else config.parse_executors(config.EXECUTORS))
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
            memory_bytes=default if asked.memory_bytes is None else asked.memory_bytes,
            executors=numbers,
            threads=_each(numbers, threads),
            profile=found,
            loaded=loaded,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
        )
    chosen = known.chosen
    same = dict(numbers) == dict(chosen.executors) and threads is None
    fits = same and asked.memory_bytes in (None, known.memory_bytes) and loaded is None
    settings = Settings(
        known.memory_bytes if asked.memory_bytes is None else asked.memory_bytes,
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
