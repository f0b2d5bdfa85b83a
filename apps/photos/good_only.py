"""Kind `patch` on photographs of four parts: learned from a few good pictures, judged by a line on all others.

Each draw takes other pictures to learn from. Normalisation, grid, the rule of leaving out, the limit and the number of
folds were chosen with a view of these sets: figures on other parts may be worse.
"""

from __future__ import annotations

import csv
import os
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import cv2
import torch
import typer
from rich.table import Table

from coe import Inspector, Picture
from coe.board import rules
from coe.cli.console import Console
from coe.core import NOTHING, Verdict
from coe.errors import CoeError
from coe.prepare import backbones, learning
from coe.prepare.prepare import Preparer
from coe.store import bodies, kinds
from coe.store.kinds import ModuleKind, TrainingPlan
from coe.store.store import Store

SETS = ("alien", "cookie", "hazelnut", "screw")
INPUT, LABEL = 224, "strange"
_GOOD = {"good", "normal"}


@dataclass(frozen=True, slots=True)
class Photos:
    """The pictures of a type: good ones and bad ones."""

    good: Sequence[Path]
    bad: Sequence[Path]


@dataclass(slots=True)
class Figures:
    """What came out for a type, a value for each draw."""

    auroc: list[float] = field(default_factory=list)
    false_calls: list[float] = field(default_factory=list)
    escapes: list[float] = field(default_factory=list)
    learned_s: list[float] = field(default_factory=list)


def read(data: Path) -> dict[str, Photos]:
    """Return the pictures of each type, in the order of the sets' `labels.csv`."""
    found: dict[str, tuple[list[Path], list[Path]]] = {name: ([], []) for name in SETS}
    for folder in ("lookout-objects", "hazelnut", "screws"):
        with (data / folder / "labels.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                type_ = row.get("object_type") or row["type"]
                found[type_][row["class"] not in _GOOD].append(data / folder / row["file"])
    return {name: Photos(*paths) for name, paths in found.items()}


def auroc(good: Sequence[float], bad: Sequence[float]) -> float:
    """Return the share of pairs in which the bad picture has the higher score; ties count half."""
    pairs = [(b > g) + (b == g) / 2 for b in bad for g in good]
    return sum(pairs) / len(pairs)


def learn(store: Store, name: str, pictures: Sequence[Path], folder: Path, false_calls: float) -> float:
    """Train an expert of a type as `coe-experts train` does; return the processor time in seconds."""
    kind = kinds.resolve("patch")
    assert isinstance(kind, ModuleKind)
    data = folder / name
    data.mkdir(parents=True)
    for path in pictures:
        (data / path.name).symlink_to(path.resolve())
    start = backbones.start_of(store, kind)
    expert = rules.load(folder / "photos.yaml").experts[name]
    plan = TrainingPlan(data, folder, 1, 1, 0.1, threads=1, false_calls=false_calls)
    began = time.process_time()
    trained = learning.learn(store, expert, kind, plan, start, lambda *_: None)
    seconds = time.process_time() - began
    learning.put(store, expert, trained, start, "trained on photographs")
    bodies.divide_backbone(store, expert.weights)
    Preparer(store, ["fp32"]).prepare(expert.weights, list(pictures)[:4])
    return seconds


def board(folder: Path) -> Path:
    """Write the board file of the four types."""
    line = f"{{kind: patch, labels: [{LABEL}], input: {INPUT}, reject: [{LABEL}], then: {{none: OK}}}}"
    experts = "".join(f"  {name}: {line}\n" for name in SETS)
    components = "".join(f"  {name}: {{inspect: {name}}}\n" for name in SETS)
    path = folder / "photos.yaml"
    path.write_text(f"board: photos\nexperts:\n{experts}components:\n{components}", encoding="utf-8")
    return path


def draw(
    photos: Mapping[str, Photos], number: int, good: int, most: int, folder: Path, false_calls: float
) -> Iterator[tuple[str, Figures]]:
    """Learn all types from as many good pictures each, and yield the figures of each on `most` others of both sorts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path, store = board(folder), Store(folder / "store")
    seconds, asked = {}, []
    for name, one in photos.items():
        chance = random.Random(number)
        order = chance.sample(list(one.good), len(one.good))
        seconds[name] = learn(store, name, order[:good], folder, false_calls)
        bad = chance.sample(list(one.bad), len(one.bad))[:most]
        asked += [(name, picture, False) for picture in order[good:][:most]] + [
            (name, picture, True) for picture in bad
        ]
    scores: dict[tuple[str, bool], list[float]] = defaultdict(list)
    called: dict[tuple[str, bool], list[bool]] = defaultdict(list)
    with Inspector(path, store=store, memory="500MB") as line:
        for result in line.stream(Picture(picture, name, name=str(n)) for n, (name, picture, _) in enumerate(asked)):
            name, _, is_bad = asked[int(result.request.image)]
            (finding,) = result.findings
            scores[name, is_bad].append(1 - finding.score if finding.label == NOTHING else finding.score)
            called[name, is_bad].append(result.verdict is not Verdict.OK)
    for name in photos:
        missed = [not one for one in called[name, True]]
        false = called[name, False]
        yield (
            name,
            Figures(
                [auroc(scores[name, False], scores[name, True])],
                [sum(false) / len(false)],
                [sum(missed) / len(missed)],
                [seconds[name]],
            ),
        )


def table(title: str, figures: Mapping[str, Figures]) -> Table:
    """Return the figures as a table: means, and the least and the largest of the draws."""
    shown = Table("type", "AUROC", "false calls", "escapes", "learned in", title=title)
    for name, one in figures.items():
        rates = (_of(one.false_calls, "{:.1%}"), _of(one.escapes, "{:.1%}"))
        shown.add_row(name, _of(one.auroc, "{:.3f}"), *rates, _of(one.learned_s, "{:.1f} s"))
    return shown


def _of(values: Sequence[float], shape: str) -> str:
    mean, least, most = (shape.format(value) for value in (sum(values) / len(values), min(values), max(values)))
    return f"{mean} ({least} to {most})"


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The photos. Default: $COE_DATA, or ../shared/data.")] = None,
    folder: Annotated[Path, typer.Option(help="Where experts go.")] = Path("build/good-only"),
    good: Annotated[int, typer.Option(help="Good pictures to learn each type from.")] = 20,
    draws: Annotated[int, typer.Option(help="How often other pictures are drawn.")] = 5,
    first: Annotated[int, typer.Option(help="The number of the first draw, to make them in several processes.")] = 0,
    most: Annotated[int, typer.Option(help="The most good, and bad, pictures to judge of a type in a draw.")] = 60,
    false_calls: Annotated[float, typer.Option(help="The wanted rate of false calls.")] = 0.05,
) -> None:
    """Learn kind patch from a few good photographs of each of four parts, judge others, and print a table."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    console = Console(width=120)
    figures = {name: Figures() for name in SETS}
    try:
        photos = read(data or Path(os.environ.get("COE_DATA") or "../shared/data"))
        for number in range(first, first + draws):
            for name, one in draw(photos, number, good, most, folder, false_calls):
                for field_ in ("auroc", "false_calls", "escapes", "learned_s"):
                    getattr(figures[name], field_).extend(getattr(one, field_))
            console.print(table(f"{good} good pictures, draws {first} to {number}", figures))
    except (CoeError, OSError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)
