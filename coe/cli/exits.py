"""Exit statuses of all commands. Law: each status has one meaning, whether the output could be written or not."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of all commands."""

    OK = 0
    NOT_GOOD = 1
    USAGE = 2
    NOT_INSPECTED = 3
    NOT_WRITTEN = 4
    INTERRUPTED = 130
