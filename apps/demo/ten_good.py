"""Kind `patch` on the demo board's twelve types, each learned from ten good parts: `python -m apps.demo.ten_good`.

Half of the parts that a line then judges are good, half are bad. Each type has a reference, made of its ten parts.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from apps.demo.pcb import Style, board_style
from apps.demo.production import save
from apps.demo.render import COMPONENTS, photograph
from coe import Inspector, Picture
from coe.board import rules
from coe.cli.console import Console
from coe.core import Verdict
from coe.inspector import line_references
from coe.prepare import backbones, golden_reference, learning
from coe.prepare.prepare import Preparer
from coe.rates import Rate
from coe.store import bodies, kinds
from coe.store.kinds import TrainingPlan
from coe.store.references import References
from coe.store.store import Store

Pixels = NDArray[np.uint8]
LABEL = "strange"
_GOOD, _TEST, _BAD = 1, 2, 3
"""What of a seed good parts to learn from, other good parts, and bad parts are drawn by."""


@dataclass(frozen=True, slots=True)
class Lot:
    """Which parts are drawn: those of one product, whose boards differ in exposure alone, or (None) of any."""

    seed: int
    product: int | None

    def part(self, component: str, defect: str | None, use: int, index: int) -> Pixels:
        """Photograph a part, good (`defect` None) or bad: (H, W, 3) uint8 RGB."""
        number = list(COMPONENTS).index(component)
        rng = np.random.default_rng((self.seed, use, number, index))
        style = board_style(rng) if self.product is None else self._of_product(rng)
        return photograph(component, defect, rng, style=style).image

    def _of_product(self, rng: np.random.Generator) -> Style:
        assert self.product is not None
        own = board_style(np.random.default_rng([self.product, 5]))
        return replace(own, exposure=board_style(rng).exposure)

    def judged(self, components: Sequence[str], each: int) -> Iterator[tuple[str, str, Pixels]]:
        """Yield component, defect ("" for a good part) and picture of so many parts of both sorts of each type."""
        for name in components:
            defects = COMPONENTS[name].defects
            for index in range(each):
                yield name, "", self.part(name, None, _TEST, index)
                defect = defects[index % len(defects)]
                yield name, defect, self.part(name, defect, _BAD, index)


def learned(
    lot: Lot, components: Sequence[str], folder: Path, *, good: int, side: int, false_calls: float, free: bool
) -> Path:
    """Learn each type from so many good parts, as the commands do; return the board file."""
    expert = {"kind": "patch", "labels": [LABEL], "input": side, "reject": [LABEL], "then": {"none": "OK"}}
    sheet = {
        "board": "ten",
        "experts": dict.fromkeys(components, expert),
        "components": {name: {"inspect": name} | ({} if free else {"reference": name}) for name in components},
    }
    path, store = folder / "ten.yaml", Store(folder / "store")
    folder.mkdir(parents=True)
    path.write_text(json.dumps(sheet), encoding="utf-8")  # JSON is YAML
    board, kind = rules.load(path), kinds.resolve("patch")
    for name, expert_ in board.experts.items():
        data, references = folder / "good" / name, {}
        data.mkdir(parents=True)
        pictures = {f"{index:03d}.png": lot.part(name, None, _GOOD, index) for index in range(good)}
        for file, pixels in pictures.items():
            save(data / file, pixels)
        if not free:
            (id,) = board.components[name].references
            References(store).put(id, golden_reference.learn(pictures).encoded("good parts"))
            references = {name: line_references.decoded({id: References(store).load(id)}).decode()}
        start = backbones.start_of(store, kind)
        plan = TrainingPlan(data, folder, 1, 1, 0.1, threads=1, references=references, false_calls=false_calls)
        trained = learning.learn(store, expert_, kind, plan, start, lambda *_: None)
        frame = "" if free else References(store).manifest(id).checksum
        learning.put(store, expert_, trained, start, "good parts", reference=frame)
        bodies.divide_backbone(store, expert_.weights)
        Preparer(store, ["fp32"]).prepare(expert_.weights, sorted(data.glob("*.png"))[:4])
    return path


def table(path: Path, lot: Lot, components: Sequence[str], each: int, wrong: Path | None) -> Table:
    """Judge parts by a line; return escapes and false calls with their bounds. Wrongly judged parts go to `wrong`."""
    escapes, calls, missed, drawn = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    parts: dict[str, tuple[str, str, Pixels]] = {}

    def pictures() -> Iterator[Picture]:
        for number, part in enumerate(lot.judged(components, each)):
            parts[str(number)] = part
            yield Picture(part[2], part[0], name=str(number), order="RGB")

    with Inspector(path, store=path.parent / "store", memory="1GiB", profile=None) as line:
        for result in line.stream(pictures()):
            name, defect, pixels = parts.pop(result.request.image)
            drawn[defect] += bool(defect)
            passed = result.verdict is Verdict.OK
            if passed == (not defect):
                continue
            missed[defect] += bool(defect)
            (escapes if defect else calls)[name] += 1
            if wrong is not None:
                wrong.mkdir(parents=True, exist_ok=True)
                score = result.findings[0].score
                save(wrong / f"{name}-{defect or 'good'}-{result.request.image}-{score:.3f}.png", pixels)
    rows = Table("", "escapes", "at most", "false calls", "at most")
    counts = {name: (escapes[name], calls[name], each) for name in components}
    counts["all"] = (escapes.total(), calls.total(), each * len(components))
    for name, (missing, called, of) in counts.items():
        rates = [Rate(missing, of), Rate(called, of)]
        rows.add_row(name, *(cell for one in rates for cell in (f"{one.events} of {one.trials}", f"{one.upper():.1%}")))
    rows.caption = ", ".join(f"{defect} {missed[defect]} of {drawn[defect]}" for defect in sorted(drawn) if defect)
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Learn each type from a few good parts, judge others, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.ten_good", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/ten-good"), help="where all goes (%(default)s)")
    parser.add_argument("--good", type=int, default=10, help="good parts to learn a type from (%(default)s)")
    parser.add_argument("--each", type=int, default=50, help="good and bad parts to judge of a type (%(default)s)")
    parser.add_argument("--component", action="append", choices=list(COMPONENTS), help="only these, not all twelve")
    parser.add_argument("--seed", type=int, default=9701, help="seed of the parts (%(default)s)")
    parser.add_argument("--input", type=int, default=224, help="input of the experts in pixels (%(default)s)")
    parser.add_argument("--false-calls", type=float, default=0.05, help="the rate that is wanted (%(default)s)")
    parser.add_argument("--product", type=int, help="parts of one product, by its number; default: of any product")
    parser.add_argument("--free", action="store_true", help="learn without references")
    parser.add_argument("--wrong", type=Path, help="where pictures go that are judged wrongly")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    shutil.rmtree(options.folder, ignore_errors=True)
    lot, components = Lot(options.seed, options.product), options.component or list(COMPONENTS)
    how = {"good": options.good, "side": options.input, "false_calls": options.false_calls, "free": options.free}
    path = learned(lot, components, options.folder, **how)
    Console(width=120).print(table(path, lot, components, options.each, options.wrong))


if __name__ == "__main__":
    main()
