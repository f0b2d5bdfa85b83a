"""Draw example photographs of components: a folder for each component, and in it a folder for each label.

    python -m apps.demo.own_photographs --to build/photos

It draws good and defective parts of the twelve component types of the demo board, or of those given.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

from apps.demo.pcb import board_style
from apps.demo.production import save
from apps.demo.render import COMPONENTS, photograph

UNSEEN = frozenset({"bridged", "lifted"})
"""Defects of solder, which are too small to be seen in pictures of this size without a detector."""


def draw(to: Path, components: Collection[str], *, good: int, bad: int, seed: int = 1) -> int:
    """Draw so many good parts of each component, and so many with each of its defects; return how many there are."""
    drawn = 0
    for component in components:
        for defect in (None, *(one for one in COMPONENTS[component].defects if one not in UNSEEN)):
            folder = to / component / (defect or "good")
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(bad if defect else good):
                rng = np.random.default_rng([seed, zlib.crc32(f"{component}/{defect}".encode()), number])
                picture = photograph(component, defect, rng, style=board_style(rng, even=True)).image
                save(folder / f"{component}-{defect or 'good'}-{number:03d}.png", picture)
                drawn += 1
    return drawn


def main(arguments: list[str] | None = None) -> None:
    """Draw what the options ask for."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.own_photographs", description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("build/photos"), help="folder for them (%(default)s)")
    parser.add_argument("--component", action="append", choices=list(COMPONENTS), help="draw only this one; repeatable")
    parser.add_argument("--good", type=int, default=24, help="good parts of each component (%(default)s)")
    parser.add_argument("--bad", type=int, default=6, help="parts with each defect (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    options = parser.parse_args(arguments)
    components = options.component or list(COMPONENTS)
    drawn = draw(options.to, components, good=options.good, bad=options.bad, seed=options.seed)
    print(f"written: {drawn} photographs of {len(components)} components in {options.to}")


if __name__ == "__main__":
    main()
