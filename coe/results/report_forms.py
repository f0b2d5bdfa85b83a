"""The forms of a run's report: each is written by an entry point of `coe.reports`, ours as one that a user brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from coe import plugins
from coe.core import Result
from coe.errors import CoeError, ConfigError
from coe.files import NotWritten, Writes
from coe.placement.board_view import BoardView
from coe.results.run_file import RunUsed
from coe.results.summary import Summary

GROUP = "coe.reports"


@dataclass(frozen=True, slots=True)
class ReferencePicture:
    """The good part with which an image was compared: `image` (H, W, 3) and `spread` (H, W), uint8, None for 0.

    `name` says which it is, as "demo/U1, version 3"; `checksum` is that of the store, "" for a given reference.
    """

    image: NDArray[np.uint8]
    spread: NDArray[np.uint8] | None = None
    name: str = "given with the image"
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class PixelSource:
    """Where the pixels of an image come from, by its name in the results, and the reference that it was compared with.

    `image` returns (H, W, 3) uint8 RGB; `reference` returns None for an image without a reference. `board` returns a
    whole board by its serial, as the summary names it, or None. They are called for what the report shows, one at a
    time. If one raises, only that picture is missing.
    """

    image: Callable[[str], NDArray[np.uint8]]
    reference: Callable[[Result], ReferencePicture | None] = lambda result: None
    board: Callable[[str], BoardView | None] = lambda serial: None


class WriteReport(Protocol):
    """Writes the report of a run of `board` to `path`, as a whole or not at all; `used` is what it was made with."""

    def __call__(  # noqa: D102
        self, path: Path, board: str, results: Sequence[Result], summary: Summary, source: PixelSource, *, used: RunUsed
    ) -> None: ...


def writers() -> dict[str, WriteReport]:
    """Return what writes reports, by form: "html" writes `report.html`. Raises ConfigError for what has no import."""
    forms = plugins.names(GROUP)
    if "html" not in forms:  # a checkout whose entry points are older than its code: no report would be written
        raise ConfigError("coe is installed with the entry points of an earlier version; install it again")
    return {form: cast(WriteReport, plugins.load(form, (), group=GROUP, noun="report")) for form in forms}


def write_reports(
    writers: Mapping[str, WriteReport],
    folder: Path,
    board: str,
    results: Sequence[Result],
    summary: Summary,
    source: PixelSource,
    used: RunUsed,
    writes: Writes,
) -> None:
    """Write the report of a run in each form that can be written; `writes` says which could not."""
    for form, write in writers.items():
        path = folder / f"report.{form}"
        writes.attempt(path, partial(_write, write, path, board, results, summary, source, used=used))


def _write(write: WriteReport, path: Path, *arguments: Any, used: RunUsed) -> None:
    """Write a report; raises NotWritten, whatever a user's code raises."""
    try:
        write(path, *arguments, used=used)
    except (KeyboardInterrupt, NotWritten):
        raise
    except CoeError as error:
        raise NotWritten(str(error)) from error
    except BaseException as error:
        raise NotWritten(f"{path.name} cannot be written: {plugins.reason(error)}; all results are safe") from error
    if not path.exists():
        raise NotWritten(f"{path.name} was not written, and nothing says why; all results are safe")
