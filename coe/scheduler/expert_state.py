"""The states of an expert in a pool, and which follows which: `docs/img/states.svg` is drawn from this table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """The state of an expert in a pool. An expert that is not in the pool has none."""

    PLANNED = "planned"
    """It waits for its bytes, which leaving experts still hold."""
    LOADING = "loading"
    """Its bytes are reserved, and the device fills them."""
    READY = "ready"
    """It is resident: batches may pin it, an eviction may choose it."""
    LEAVING = "leaving"
    """The device gives its bytes back."""


NEXT: Mapping[State | None, Mapping[State | None, str]] = MappingProxyType(
    {
        None: {State.PLANNED: "a load is decided"},
        State.PLANNED: {State.LOADING: "its bytes are free", None: "given up"},
        State.LOADING: {State.READY: "loaded", None: "the load failed"},
        State.READY: {State.LEAVING: "evicted"},
        State.LEAVING: {None: "its bytes are free"},
    }
)
"""What may follow each state, and when; None is an expert that is not in the pool."""
