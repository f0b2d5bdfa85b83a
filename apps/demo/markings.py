"""Parts of the demo board with the marking of their value, or of another: is a wrong value in the right package found?

    python -m apps.demo.markings --parts 200

Each part is rendered as those of the demo board are, with a value drawn at random. Half of the parts bear the value
that their rule allows, the others another of the same series. The experts are of kind `marking`, one for each value,
and all read with one expert of the store, `base/marking` (docs/experts.md says how it comes there).
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from apps.demo import cans, chips, leaded
from apps.demo.canvas import Canvas, Pose
from apps.demo.light import picture
from apps.demo.pcb import bare_board, board_style
from apps.demo.site import Site
from coe.allowed_text import Reading
from coe.cli.console import Console
from coe.core import Expert
from coe.runtime.cpu import CpuDevice
from coe.store import kinds
from coe.store.store import Store

FIRST_SEED = 7001
_E24 = re.findall("..", "101112131516182022242730333639434751566268758291")
_RESISTORS = tuple(f"{digits}{power}" for digits in _E24 for power in range(7))
_OHMS = tuple(f"{digits[0]}R{digits[1]}" for digits in _E24)
_TANTALUM = tuple(f"{digits}{power}{volts}" for digits in _E24[::2] for power in (4, 5, 6, 7) for volts in "GJACDEV")


@dataclass(frozen=True, slots=True)
class MarkedType:
    """A type of part: its drawing with a marking, the series of its values, and its window in pixels from the middle.

    `window` is the middle's x and y, the width and the height.
    """

    size: int
    clear: float
    window: tuple[float, float, float, float]
    values: tuple[str, ...]
    draw: Callable[[Site, str], None]

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """The window as the rules have it: left, top, width, height in shares of the picture."""
        x, y, width, height = self.window
        left, top = (0.5 + (x - width / 2) / self.size, 0.5 + (y - height / 2) / self.size)
        return round(left, 3), round(top, 3), round(width / self.size, 3), round(height / self.size, 3)


def _tantalum(site: Site, text: str) -> None:
    chips.moulded(site, 62, 36, (0.62, 0.34, 0.055), (0.16, 0.07, 0.02), text, (0.17, 0.08, 0.03))


def _diode(site: Site, text: str) -> None:
    chips.moulded(site, 66, 42, (0.040, 0.040, 0.043), (0.50, 0.50, 0.49), text, (0.36, 0.36, 0.35))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TYPES: dict[str, MarkedType] = {
    "R0402": MarkedType(96, 78, (0, 0, 32, 22), _RESISTORS, lambda s, t: chips.chip_resistor(s, 54, 28, t)),
    "R0805": MarkedType(112, 94, (0, 0, 42, 28), _OHMS + _RESISTORS, lambda s, t: chips.chip_resistor(s, 66, 41, t)),
    "CT-A": MarkedType(112, 100, (6, 0, 46, 22), _TANTALUM, _tantalum),
    "CE-D6": MarkedType(144, 124, (0, -6, 44, 24), _words("10 22 33 47 68 100 150 220 330 470"),
                        lambda s, t: cans.electrolytic(s, 40, [t, "16V"])),
    "D-SMA": MarkedType(120, 106, (7, 0, 50, 24), _words("SS12 SS13 SS14 SS16 SS24 SS34 SS36 S1A S1M M4 M7 US1M RS1J"),
                        _diode),
    "Y3225": MarkedType(112, 90, (0, -6, 50, 19), _words("8.000 12.000 16.000 20.000 24.000 25.000 26.000 27.120"),
                        lambda s, t: chips.crystal(s, 62, 48, t)),
    "Q-SOT23": MarkedType(112, 84, (0, 0, 40, 18), _words("1AM 1AB 1FW 2TY J3Y 6CT K72 L6W 7002 A7W AO3T"),
                          lambda s, t: leaded.sot(s, 58, 30, t)),
    "U-SOIC8": MarkedType(128, 112, (0, -8.4, 50, 19), _words("24C02 24C04 24C08 24C16 24C32 24C64 25Q32 93C46 LM358"),
                          lambda s, t: leaded.soic(s, 76, 58, [t, "K2417"])),
    "U-QFP32": MarkedType(160, 146, (0, -14, 54, 16), _words("CM32F0 CM32F1 CM32F3 CM32L0 CM32L4 CK32F0 GD32E2"),
                          lambda s, t: leaded.qfp(s, 96, 8, [t, "K6T6 A", "2446"])),
}  # fmt: skip
"""The types of the demo board that bear their value."""


def photograph(of_type: MarkedType, marking: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Render one good part that bears a marking, (size, size, 3) uint8 RGB, as `apps.demo.render` renders parts."""
    style = board_style(rng)
    camera = Pose(*(float(v) for v in rng.uniform(-1.5, 1.5, 2)), float(rng.uniform(-1.2, 1.2)))
    site = Site(Canvas(of_type.size, camera), style, rng, None, "")
    bare_board(site.scene, style, rng, of_type.clear)
    of_type.draw(site, marking)
    return picture(site.scene, rng, style.exposure)


@dataclass(slots=True)
class Outcomes:
    """How many parts of the right value and of a wrong one there were, and how many of each were called."""

    right: int = 0
    called: int = 0
    wrong: int = 0
    found: int = 0
    seconds: float = 0.0

    def add(self, other: Outcomes) -> None:
        """Count others too."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def expert_of(of_type: MarkedType, allowed: str, size: int = 96) -> Expert:
    """Return the expert of a board file that allows one value; 0 and O are alike in the font of the renderer."""
    reads = Reading(window=of_type.shares, allowed=(allowed,), alike=("0O",))
    return Expert("value", "marking", ("right", "wrong"), size, "base/marking", frozenset({"wrong"}), reads=reads)


def measure(store: Store, name: str, parts: int, seed: int, *, turned: bool = False, misses: list[str]) -> Outcomes:
    """Render and read parts of one type, half of them of a wrong value; with `turned` half of all are upside down."""
    of_type, kind = TYPES[name], kinds.resolve("marking")
    device, outcomes = CpuDevice(store, {"marking": kind}, threads=1), Outcomes()
    first = expert_of(of_type, of_type.values[0], size=144 if turned else 96)
    device.load("pool", first)
    for number in range(parts):
        rng = np.random.default_rng([seed, list(TYPES).index(name), number])
        right, wrong = (str(value) for value in rng.choice(of_type.values, 2, replace=False))
        is_wrong = number % 2 == 1
        shown = photograph(of_type, wrong if is_wrong else right, rng)
        if turned and rng.random() < 0.5:
            shown = np.ascontiguousarray(shown[::-1, ::-1])
        expert = expert_of(of_type, right, size=first.input_size)
        begun = time.thread_time()
        (finding,) = device.run("executor", "pool", expert, [kind.preprocess(shown, expert)])
        outcomes.seconds += time.thread_time() - begun
        is_called = finding.label == "wrong" or bool(finding.doubt)
        outcomes.add(Outcomes(not is_wrong, is_called and not is_wrong, is_wrong, is_called and is_wrong))
        if is_called != is_wrong:
            truth = f"bears {wrong}" if is_wrong else "is right"
            misses.append(f"{name} {number}: {truth}, {finding.reading} ({finding.score:.2f}) {finding.doubt}")
    device.evict("pool", first)
    return outcomes


def main(arguments: list[str] | None = None) -> None:
    """Measure all types and print a table; exit status 1 if too many wrong parts escape or right ones are called."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.markings", description=__doc__)
    parser.add_argument(
        "--store", type=Path, help="the expert store with base/marking (default: $COE_STORE, or ./store)"
    )
    parser.add_argument("--parts", type=int, default=200, help="parts of each type (%(default)s)")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="seed of the parts (%(default)s)")
    parser.add_argument(
        "--turned", action="store_true", help="half of the parts upside down; needs base/marking of 144"
    )
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    console, store, total, misses = Console(width=120), Store(options.store), Outcomes(), list[str]()
    table = Table(title="a wrong value in the right package", title_justify="left")
    for heading in ("type", "right parts", "called", "wrong parts", "found", "ms of one core a part"):
        table.add_column(heading, justify="left" if heading == "type" else "right")
    for name in (*TYPES, "all"):
        if name != "all":
            console.print(f"reading {options.parts} of {name}")
            outcomes = measure(store, name, options.parts, options.seed, turned=options.turned, misses=misses)
            total.add(outcomes)
        else:
            outcomes = total
        number = outcomes.right + outcomes.wrong
        counts = outcomes.right, outcomes.called, outcomes.wrong, outcomes.found
        table.add_row(name, *map(str, counts), f"{1000 * outcomes.seconds / number:.1f}")
    console.print(table)
    for miss in misses:
        console.print(miss)
    raise SystemExit(0 if total.found >= 0.99 * total.wrong and total.called <= 0.01 * total.right else 1)


if __name__ == "__main__":
    main()
