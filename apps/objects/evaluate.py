"""Measure the `objects` board on the test part, through the public API."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from apps.data_set import run
from apps.objects.data import Photo, find, read
from coe import Inspector, Picture
from coe.cli.console import Console
from coe.core import Result, Verdict


def judge(folder: Path, photos: list[Photo], store: Path | None, memory: str) -> list[Result]:
    """Inspect the photos as a line would; `Request.image` is the photo's path inside the data set."""
    pictures = [Picture(folder / photo.inside, photo.component, name=photo.inside.as_posix()) for photo in photos]
    with Inspector("objects", store=store, memory=memory) as line:
        return list(line.stream(pictures))


Counts = dict[str, Counter[tuple[str, str]]]
"""By type of object, and for `all`: the number of photos by truth ("normal" or "anomaly") and verdict, or "error"."""


def counted(photos: list[Photo], results: list[Result]) -> Counts:
    """Return for each type, and for `all`, the number of photos by truth and verdict."""
    truths = {photo.inside.as_posix(): photo.label for photo in photos}
    counts: Counts = {}
    for result in results:
        verdict = result.verdict.value if result.verdict else "error"
        for name in (result.request.component, "all"):
            counts.setdefault(name, Counter())[truths[result.request.image], verdict] += 1
    return dict(sorted(counts.items()))


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The photos. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for evaluation.json.")] = Path("build/objects"),
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
    memory: Annotated[str, typer.Option(help="Budget of the line for experts and activations.")] = "1GiB",
) -> None:
    """Measure verdicts of the object types on the test part: 18 photos of one, 11 of the other.

    An escape is an anomaly that the line calls OK; a false call is a normal photo that it calls NG or REVIEW.
    """
    console = Console()
    folder = find(data)
    photos = read(folder, "test")
    counts = counted(photos, judge(folder, photos, store, memory))
    table = Table("type", "photos", "right", "escapes", "false calls", title="verdicts")
    for name, count in counts.items():
        bad = sum(number for (truth, _), number in count.items() if truth == "anomaly")
        good = sum(number for (truth, _), number in count.items() if truth == "normal")
        escapes = count["anomaly", Verdict.OK.value]
        false_calls = good - count["normal", Verdict.OK.value]
        right = bad + good - escapes - false_calls
        table.add_row(name, str(bad + good), str(right), f"{escapes} of {bad}", f"{false_calls} of {good}")
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    rows = {name: {" ".join(key): number for key, number in count.items()} for name, count in counts.items()}
    (out / "evaluation.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main)
