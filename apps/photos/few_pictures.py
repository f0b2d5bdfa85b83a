"""Measure experts that were trained on a few photographs, in several random draws, on the other photographs.

`python -m apps.photos.few_pictures` reads sets of photographs with a `labels.csv` (file, type or object_type, class,
group). Kinds that learn good parts alone (`--kind patch`) are not trained on bad ones.
"""

from __future__ import annotations

import csv
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from coe.core import Expert, Finding
from coe.learn import backbones, learning
from coe.pictures.decoding import decode
from coe.pictures.photographs import Photograph
from coe.store import kinds
from coe.store.kinds import Kind, ModuleKind, TrainingPlan
from coe.store.store import Store
from coe.variants.fold import fold, network

SETS = ("lookout-objects", "hazelnut", "screws")
MOST_JUDGED = 200
"""Most photographs that are judged in a draw."""


@dataclass(frozen=True, slots=True)
class Photo:
    """A photograph: whether it shows a good part, and the name of the group that must not be divided ("" for none)."""

    path: Path
    good: bool
    group: str = ""


@dataclass(frozen=True, slots=True)
class Draw:
    """What a draw came to: counts of photographs, and seconds of processor time to learn and to judge one of them."""

    good: int
    bad: int
    escapes: int
    false_calls: int
    in_doubt: int
    learned_s: float
    judged_s: float

    @property
    def right(self) -> float:
        """The share of right labels; a doubt, which goes to REVIEW, is counted apart."""
        return 1 - (self.escapes + self.false_calls) / (self.good + self.bad)


def read(root: Path) -> dict[str, list[Photo]]:
    """Return the photographs of the sets under a folder, by type."""
    types: dict[str, list[Photo]] = {}
    for name in SETS:
        with (root / name / "labels.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                photo = Photo(root / name / row["file"], row["class"] in ("good", "normal"), row.get("group") or "")
                types.setdefault(row.get("type") or row["object_type"], []).append(photo)
    return types


def drawn(photos: Sequence[Photo], good: int, bad: int, seed: int) -> tuple[list[Photo], list[Photo]]:
    """Return the photographs to learn from, at most half of the bad ones, and those to judge, of other groups."""
    chance = np.random.default_rng(seed)
    of_sort = [[photos[i] for i in chance.permutation([i for i, one in enumerate(photos) if one.good is sort])]
               for sort in (True, False)]  # fmt: skip
    chosen = of_sort[0][:good] + of_sort[1][: min(bad, len(of_sort[1]) // 2)]
    groups = {one.group for one in chosen} - {""}
    others = [one for one in photos if one not in chosen and one.group not in groups]
    return chosen, [others[i] for i in chance.permutation(len(others))[:MOST_JUDGED]]


def tried(
    store: Store, kind: ModuleKind, side: int, learned: Sequence[Photo], others: Sequence[Photo], **more: Any
) -> Draw:
    """Let a kind with an input of `side` pixels learn from photographs, with `more` of the plan, and judge others."""
    photographs = tuple(
        Photograph(one.path, "part", name=one.path.name, label="good" if one.good else "bad", good=one.good)
        for one in learned
    )
    labels = ("strange",) if kind.good_only else ("bad", "good")
    start = backbones.start_of(store, kind)
    expert = Expert("few", kind.name, labels, side, "few/few", frozenset(labels) - {"good"})
    plan = TrainingPlan(Path(), Path(), 20, 16, 1e-3, threads=1, held_out=0.0, photographs=photographs, **more)
    begun = time.process_time()
    trained = learning.learn(store, expert, kind, plan, start, lambda *_: None)
    learned_s = time.process_time() - begun
    expert = replace(expert, preprocessing=trained.preprocessing, alternates=trained.looks)
    begun = time.process_time()
    findings = list(said(kind, expert, trained.state, others))
    judged_s = (time.process_time() - begun) / len(others)
    passed = [finding.label in ("good", "none") for finding in findings]
    return Draw(
        sum(one.good for one in others),
        sum(not one.good for one in others),
        sum(ok and not one.good for ok, one in zip(passed, others, strict=True)),
        sum(one.good and not ok for ok, one in zip(passed, others, strict=True)),
        sum(bool(finding.doubt) for finding in findings),
        learned_s,
        judged_s,
    )


def said(
    kind: ModuleKind, expert: Expert, state: dict[str, torch.Tensor], photos: Sequence[Photo]
) -> Iterator[Finding]:
    """Yield what an expert says of each photograph; decoding counts."""
    folded = fold(kind, expert, state)  # as a store has it
    module = network(kind, expert, folded.state, folded.pairs)
    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for one in photos:
        prepared = kind.preprocess(np.asarray(decode(one.path), np.uint8), expert)
        with torch.inference_mode():
            outputs = kind.forward(module, torch.from_numpy(prepared.pixels[None]))
        yield from kind.postprocess(outputs, [prepared], expert)


def line_of(name: str, draws: Sequence[Draw]) -> str:
    """Return a row of the table."""
    rights = [draw.right for draw in draws]
    judged = sum(draw.good + draw.bad for draw in draws)
    cells = [
        name,
        f"{np.mean(rights):.1%} ({min(rights):.1%} to {max(rights):.1%})",
        f"{sum(draw.escapes for draw in draws)} of {sum(draw.bad for draw in draws)}",
        f"{sum(draw.false_calls for draw in draws)} of {sum(draw.good for draw in draws)}",
        f"{sum(draw.in_doubt for draw in draws)} of {judged}",
        f"{np.mean([draw.learned_s for draw in draws]):.1f} s",
        f"{1000 * np.mean([draw.judged_s for draw in draws]):.0f} ms",
    ]
    return f"| {' | '.join(cells)} |"


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="Photographs. Default: $COE_DATA, or ../shared/data.")] = None,
    kind: Annotated[str, typer.Option(help="Kind to train.")] = "probe",
    side: Annotated[int, typer.Option("--input", help="Longer side of the input in pixels.")] = 224,
    only: Annotated[list[str] | None, typer.Option("--type", help="Only this type; repeatable.")] = None,
    good: Annotated[int, typer.Option(help="Good parts to train on.")] = 20,
    bad: Annotated[int, typer.Option(help="Bad parts to train on.")] = 20,
    draws: Annotated[int, typer.Option(help="Number of random draws.")] = 5,
    false_calls: Annotated[float | None, typer.Option(help="Wanted rate, for kinds that take one.")] = None,
) -> None:
    """Print a row for each type: right labels (worst and best draw), escapes, false calls, doubts, times."""
    torch.set_num_threads(1)
    resolved: Kind = kinds.resolve(kind)
    assert isinstance(resolved, ModuleKind)
    print("| type | right | escapes | false calls | in doubt | training | per image |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        learn = partial(tried, Store(Path(folder)), resolved, side, false_calls=false_calls)
        for name, photos in read(data or Path(os.environ.get("COE_DATA") or "../shared/data")).items():
            if only and name not in only:
                continue
            parts = good, 0 if resolved.good_only else bad
            done = [learn(*drawn(photos, *parts, seed), seed=seed) for seed in range(draws)]
            print(line_of(name, done), flush=True)


if __name__ == "__main__":
    typer.run(main)
