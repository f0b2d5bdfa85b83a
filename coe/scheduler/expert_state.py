"""Where an expert is on its way into a pool and out of it."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of an expert in a pool."""

    PLANNED = "planned"
    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"
