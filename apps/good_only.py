"""Experts that learn from a few good parts, measured: a board with one expert of kind `good` for each component type.

Good parts become a reference and an expert in the store; other parts are then inspected through the public API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from apps.demo.production import save
from coe import Inspector, Picture
from coe.board import rules
from coe.board.decoding import decode
from coe.core import Verdict
from coe.inspector import references
from coe.prepare import golden_reference
from coe.rates import Rate
from coe.store import kinds
from coe.store.kinds import TrainingPlan
from coe.store.references import References
from coe.store.store import Store

Pixels = NDArray[np.uint8]
LABEL = "strange"
_ENTRY = {"kind": "good", "labels": [LABEL], "reject": [LABEL], "then": {"none": "OK"}}


@dataclass(frozen=True, slots=True)
class NewType:
    """A component type that only its good parts tell of: `init` gives the layers that see, None random layers."""

    name: str
    good: Sequence[Pixels]
    init: Path | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part to inspect, and the name of its defect; "" for a good part."""

    component: str
    defect: str
    pixels: Pixels


@dataclass(slots=True)
class Tally:
    """What became of the parts of one component type, or of one defect."""

    good: int = 0
    bad: int = 0
    escapes: int = 0
    false_calls: int = 0
    by_defect: dict[str, list[int]] = field(default_factory=dict)

    def add(self, part: Part, verdict: Verdict | None) -> None:
        """Count a part; everything but OK is a call, also a picture for a person."""
        passed = verdict is Verdict.OK
        if part.defect:
            self.bad += 1
            self.escapes += passed
            counts = self.by_defect.setdefault(part.defect, [0, 0])
            counts[0] += passed
            counts[1] += 1
        else:
            self.good += 1
            self.false_calls += not passed

    def joined(self, other: Tally) -> Tally:
        """Return the sum of two tallies."""
        defects = {
            name: [
                a + b for a, b in zip(self.by_defect.get(name, [0, 0]), other.by_defect.get(name, [0, 0]), strict=True)
            ]
            for name in {**self.by_defect, **other.by_defect}
        }
        return Tally(
            self.good + other.good,
            self.bad + other.bad,
            self.escapes + other.escapes,
            self.false_calls + other.false_calls,
            defects,
        )


def board(types: Sequence[NewType], folder: Path, *, input_size: int, false_calls: float) -> Path:
    """Make references and experts of new types in `folder`, and the board file that names them; return its path."""
    sheet = {
        "board": "new",
        "experts": {kind.name: {**_ENTRY, "input": input_size} for kind in types},
        "components": {kind.name: {"inspect": kind.name, "reference": kind.name} for kind in types},
    }
    path, store = folder / "new.yaml", Store(folder / "store")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sheet, indent=2), encoding="utf-8")  # JSON is YAML without aliases
    loaded = rules.load(path)
    for new in types:
        data = folder / "good" / new.name
        data.mkdir(parents=True, exist_ok=True)
        for number, pixels in enumerate(new.good):
            save(data / f"{number:03d}.png", pixels)
        shown = {file.name: decode(file) for file in sorted(data.glob("*.png"))}
        id = f"new/{new.name}"
        References(store).put(id, golden_reference.learn(shown).encoded("good parts"))
        expert = loaded.experts[new.name]
        reference = references.proved(References(store), id).decode()
        learned_from = {new.name: reference}
        plan = TrainingPlan(
            data, folder, 1, 1, 1e-3, init=new.init, threads=1, references=learned_from, false_calls=false_calls
        )
        trained = kinds.resolve("good").train(expert, plan, lambda *_: None)
        store.put(
            expert.weights, kind="good", labels=expert.labels, input_size=input_size, state=trained.state,
            metrics=trained.metrics,
                learned=trained.learned,
                unproven=trained.unproven,
        )  # fmt: skip
    return path


def inspect(path: Path, parts: Iterable[Part]) -> dict[str, Tally]:
    """Inspect parts through the public API; return a tally for each component type."""
    under_way: dict[str, Part] = {}
    tallies: dict[str, Tally] = {}

    def pictures() -> Iterable[Picture]:
        for number, part in enumerate(parts):
            under_way[str(number)] = part
            yield Picture(part.pixels, part.component, name=str(number), order="RGB")

    with Inspector(path, store=path.parent / "store", memory="1GiB", profile=None) as line:
        for result in line.stream(pictures()):
            part = under_way.pop(result.request.image)
            if result.failure is not None:
                raise RuntimeError(result.failure.reason)
            tallies.setdefault(part.component, Tally()).add(part, result.verdict)
    return tallies


def table(title: str, tallies: dict[str, Tally]) -> Table:
    """Return the rates with their bounds (one-sided, 95 %), and the sum of all."""
    whole = Tally()
    for tally in tallies.values():
        whole = whole.joined(tally)
    rows = Table("", "escapes", "at most", "false calls", "at most", title=title, title_justify="left")
    for name, tally in [*tallies.items(), ("all", whole)]:
        escapes, calls = Rate(tally.escapes, tally.bad), Rate(tally.false_calls, tally.good)
        shown = [f"{rate.events} of {rate.trials}" for rate in (escapes, calls)]
        bounds = [f"{rate.upper():.1%}" for rate in (escapes, calls)]
        rows.add_row(name, shown[0], bounds[0], shown[1], bounds[1])
    missed = ", ".join(f"{name} {a} of {b}" for name, (a, b) in sorted(whole.by_defect.items()))
    rows.caption, rows.caption_justify = f"escapes by defect: {missed}", "left"
    return rows
