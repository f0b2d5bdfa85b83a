"""What a run was made with, as `run.json` and the report carry it: enough to tell years later why a verdict was so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsedVersion:
    """An expert or a reference: its id in the store, version and checksum there, when it was made, and from what."""

    id: str
    version: int
    checksum: str
    created: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class RunUsed:
    """The board file and its calibration (temperatures and thresholds) as texts, and the versions of what they name."""

    board_file: str
    rules: str
    calibration: str = ""
    experts: tuple[UsedVersion, ...] = ()
    references: tuple[UsedVersion, ...] = ()
    coe: str = ""
