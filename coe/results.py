"""A run's folder. Law: a result that was written is never lost.

`results.jsonl` grows by one line a result; a kill loses at most the line being written. `finish` puts it into the order
of the images and writes `results.csv` and `summary.json` beside it. `run.json` says whose results these are.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from coe.core import Box, Finding, Request, Result, Verdict
from coe.errors import ConfigError
from coe.files import write_atomically, writing
from coe.images import Item
from coe.summary import RunFigures, Summary, finite, summarise

RESULTS, TABLE, SUMMARY, RUN = "results.jsonl", "results.csv", "summary.json", "run.json"


class ResultsFile:
    """The results of one run while they come in. Only this class writes into a run's folder; one thread at a time.

    Raises ConfigError if the folder holds results and `resume` is not set, or if they are of another board, another
    version of its file (`fingerprint`) or other images (`source`), or being written by another process; DiskFull when
    there is no room. Image names are unique; a second result of an image takes the place of the first.
    """

    def __init__(self, folder: Path, *, board: str, fingerprint: str, source: str = "", resume: bool = False) -> None:
        self.folder = folder
        self._path = folder / RESULTS
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            run = {"board": board, "fingerprint": fingerprint, "source": source}
            self._results = self._take_up(run, resume)
            write_atomically(folder / RUN, [json.dumps(run, ensure_ascii=False, indent=2) + "\n"])
        except BaseException:
            self.close()
            raise

    @property
    def results(self) -> list[Result]:
        """The newest result of every image, in the order of their first."""
        return list(self._results.values())

    @property
    def done(self) -> frozenset[str]:
        """Names of the images that need no second look; those with an error do."""
        return frozenset(name for name, result in self._results.items() if result.error is None)

    def write(self, result: Result) -> None:
        """Append one result; once this returns, a kill of the process cannot take it away. Raises DiskFull."""
        line = memoryview(_line(result).encode(errors="backslashreplace"))
        with writing(self._path):
            sound = os.fstat(self._fd).st_size
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                with suppress(OSError):  # half a line, followed by others, would spoil the file
                    os.ftruncate(self._fd, sound)
                raise
        self._results[result.request.image] = result

    def finish(self, items: Sequence[Item], run: RunFigures) -> Summary:
        """Put the results into the order of `items`, write the table and the summary, and close.

        Results of images that are not among `items` are kept, at the end; items without a result count as missing.
        Each file is replaced as a whole or not at all. Raises DiskFull.
        """
        rest = dict(self._results)
        ordered = [rest.pop(item.name) for item in items if item.name in rest]
        ordered += rest.values()
        summary = summarise(ordered, run, [item for item in items if item.name not in self._results])
        write_atomically(self._path, (_line(result) for result in ordered))
        write_atomically(self.folder / TABLE, _table(ordered))
        text = json.dumps(summary.to_json(), ensure_ascii=False, allow_nan=False, indent=2)
        write_atomically(self.folder / SUMMARY, [text + "\n"])
        self._results = {result.request.image: result for result in ordered}
        self.close()
        return summary

    def close(self) -> None:
        """Let go of the file; calling it again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ResultsFile {self._path} {len(self._results)} images, {len(self.done)} done>"

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{self.folder}: another run is writing here; wait for it or give another --out"
            ) from error
        except OSError:  # a file system without locks
            pass

    def _take_up(self, run: dict[str, str], resume: bool) -> dict[str, Result]:
        """Read what an earlier process wrote, cut off its torn last line, and refuse what is not this run's."""
        if not os.fstat(self._fd).st_size:
            return {}
        if not resume:
            raise ConfigError(
                f"{self.folder} holds the results of a run; go on with it (--resume) or give another folder (--out)"
            )
        way_out = "give another folder (--out) to start anew"
        try:
            before = json.loads((self.folder / RUN).read_text(encoding="utf-8"))
            before = {name: before.get(name) for name in run}
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{self.folder / RUN} does not say whose results these are; {way_out}") from error
        for name, what in (
            ("board", "board"),
            ("fingerprint", "version of the board file"),
            ("source", "set of images"),
        ):
            if before[name] != run[name]:
                values = "" if name == "fingerprint" else f" ('{before[name]}', not '{run[name]}')"
                raise ConfigError(f"{self.folder} holds a run with another {what}{values}; {way_out}")
        results, sound = _parse(self._path)
        os.ftruncate(self._fd, sound)
        return {result.request.image: result for result in results}


def read(path: Path) -> list[Result]:
    """Read a `results.jsonl`, a torn last line left out.

    Request ids are line numbers from 0. Raises ConfigError with the line number if any other line is damaged.
    """
    return _parse(path)[0]


def _parse(path: Path) -> tuple[list[Result], int]:
    try:
        *lines, tail = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    results: list[Result] = []
    sound = 0
    for number, line in enumerate(lines, 1):
        try:
            results.append(_result(json.loads(line), number - 1))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines) and not tail:  # after a power cut the last line may end and yet be torn
                break
            raise ConfigError(
                f"{path}:{number}: not a result ({error}); mend or remove that line, or start anew with another --out"
            ) from error
        sound += len(line) + 1
    return results, sound


def _line(result: Result) -> str:
    request = result.request
    row = {
        "image": request.image,
        "serial": request.serial,
        "component": request.component,
        "refdes": request.refdes,
        "verdict": result.verdict.value if result.verdict else None,
        "findings": [
            {
                "expert": finding.expert,
                "variant": finding.variant,
                "label": finding.label,
                "score": finite(finding.score, 6),
                "boxes": [
                    {"label": box.label, "score": finite(box.score, 6), "xyxy": [finite(x, 2) for x in box.xyxy]}
                    for box in finding.boxes
                ],
            }
            for finding in result.findings
        ],
        "latency_s": finite(result.latency_s, 6),
        "late": result.late,
        "error": result.error,
    }
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _result(row: Any, number: int) -> Result:
    if (row["verdict"] is None) == (row["error"] is None):
        raise ValueError("it needs a verdict or an error, and not both")
    findings = tuple(
        Finding(
            finding["expert"],
            finding["variant"],
            finding["label"],
            _float(finding["score"]),
            tuple(_box(box) for box in finding["boxes"]),
        )
        for finding in row["findings"]
    )
    request = Request(number, row["component"], row["image"], row["serial"], row["refdes"])
    if not all(isinstance(text, str) for text in (request.component, request.image, request.serial, request.refdes)):
        raise TypeError("image, serial, component and refdes must be text")
    verdict = None if row["verdict"] is None else Verdict(row["verdict"])
    return Result(request, verdict, findings, _float(row["latency_s"]), row["error"], row.get("late", False) is True)


def _box(box: Any) -> Box:
    x0, y0, x1, y1 = map(_float, box["xyxy"])
    return Box(box["label"], _float(box["score"]), (x0, y0, x1, y1))


def _table(results: Iterable[Result]) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "serial", "component", "refdes", "verdict", "findings", "latency_s", "late", "error"])
    for result in results:
        request = result.request
        findings = " > ".join(
            f"{finding.expert}={finding.label} {finding.score:.3f}"
            + (f" ({len(finding.boxes)} boxes)" if finding.boxes else "")
            for finding in result.findings
        )
        verdict = result.verdict.value if result.verdict else ""
        latency = "" if math.isnan(result.latency_s) else f"{result.latency_s:.6f}"
        about = [request.image, request.serial, request.component, request.refdes]
        writer.writerow([*about, verdict, findings, latency, "late" if result.late else "", result.error or ""])
    yield text.getvalue()


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
