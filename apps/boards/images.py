"""Draw pictures for a board without real images: noise on a colour of each component, as many as its count asks for.

They show nothing, but load a machine like real images of the board: `python -m apps.boards.images --board A`.
"""

from __future__ import annotations

import argparse
import random
import zlib
from pathlib import Path

import cv2
import numpy as np

from coe.board import rules


def write(board: str, folder: Path, count: int, seed: int, side: int) -> int:
    """Write `count` pictures (side x side) as `<folder>/SN<board>/<refdes>__<component>.png`; return how many types."""
    components = rules.load(board).components
    chance = random.Random(seed)
    names = chance.choices(list(components), [component.count for component in components.values()], k=count)
    noise = np.random.default_rng(seed)
    for index, name in enumerate(names):
        tint = np.frombuffer(zlib.crc32(name.encode()).to_bytes(4, "little"), np.uint8)[:3]
        pixels = noise.normal(tint, 30, (side, side, 3)).clip(0, 255).astype(np.uint8)
        path = folder / f"SN{index // 100:04d}" / f"X{index}__{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), pixels)
    return len(set(names))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--board", default="A", help="a name or a YAML file (default: A)")
    parser.add_argument("--out", type=Path, help="folder (default: build/<board>/images)")
    parser.add_argument("--count", type=int, default=400, help="number of pictures (default: 400)")
    parser.add_argument("--side", type=int, default=240, help="width and height in pixels (default: 240)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random choices (default: 0)")
    options = parser.parse_args()
    folder = options.out or Path("build") / rules.load(options.board).board / "images"
    types = write(options.board, folder, options.count, options.seed, options.side)
    print(f"{options.count} pictures of {types} component types in {folder}")


if __name__ == "__main__":
    main()
