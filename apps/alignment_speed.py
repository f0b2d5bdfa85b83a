"""How long it takes to bring a picture into the frame of its reference, and to compare both, on one thread.

    python -m apps.alignment_speed

Pictures are QFPs of the demo board, scaled to each size: one that lies as its reference does, others that are shifted,
and turned and enlarged, and pictures of another part, for which all motions are tried: the longest that it can take.
Times are of the processor; some are in docs/references.md.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated

import cv2
import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table

from apps.demo.render import render
from coe.board.alignment import align
from coe.board.comparison import compare
from coe.cli.common import application, out, run
from coe.errors import ConfigError

app = application("Times of aligning pictures with their references.")
PART, OTHER = "U-QFP32-MCU", "U-SOIC8-EEPROM"
CASES = {"in place": (0, 0, 0.0, 1.0), "shifted": (0.02, -0.03, 0.0, 1.0), "turned": (0.01, 0.01, 1.5, 1.01)}
"""Right and down, as shares of the side, degrees, and scale."""

Pixels = NDArray[np.uint8]


def moved(picture: Pixels, right: float, down: float, degrees: float, scale: float) -> Pixels:
    """Return a picture (S, S, 3) as it is seen after a motion."""
    side = len(picture)
    motion = cv2.getRotationMatrix2D(((side - 1) / 2, (side - 1) / 2), degrees, scale)
    motion[:, 2] += (right * side, down * side)
    return np.asarray(cv2.warpAffine(picture, motion, (side, side), borderMode=cv2.BORDER_REPLICATE), np.uint8)


def pictures_of(side: int, count: int) -> tuple[Pixels, dict[str, list[Pixels]]]:
    """Return a reference (side, side, 3) and, for each case, `count` pictures with the noise of a camera."""

    def drawn(component: str, seed: int) -> Pixels:
        picture = render(component, None, np.random.default_rng(seed))
        return np.asarray(cv2.resize(picture, (side, side), interpolation=cv2.INTER_CUBIC), np.uint8)

    def noisy(picture: Pixels, seed: int) -> Pixels:
        noise = np.random.default_rng(seed).normal(0, 3, picture.shape)
        return np.clip(picture + noise, 0, 255).astype(np.uint8)

    reference = drawn(PART, 1)
    cases = {name: [noisy(moved(reference, *motion), seed) for seed in range(count)] for name, motion in CASES.items()}
    return reference, cases | {"another part": [drawn(OTHER, seed) for seed in range(count)]}


@app.command()
def main(
    sides: Annotated[str, typer.Option(help="Sides of the pictures in pixels.")] = "64,128,256,640,1280",
    count: Annotated[int, typer.Option(min=3, max=1000, help="Pictures of each case.")] = 20,
) -> None:
    """Print medians and maxima in microseconds a picture.

    Example: python -m apps.alignment_speed --sides 96,224
    """
    try:
        lengths = [int(side) for side in sides.split(",")]
    except ValueError:
        raise ConfigError(f"--sides {sides}: give whole numbers of pixels, as 64,640") from None
    if min(lengths) < 16 or max(lengths) > 8192:
        raise ConfigError(f"--sides {sides}: each must be from 16 to 8192 pixels")
    cv2.setNumThreads(1)
    table = Table("side", "picture", "align: median, most", "align and compare: median, most", "fit")
    for side in lengths:
        reference, cases = pictures_of(side, count)
        for name, pictures in cases.items():
            aligning, comparing, fits = [], [], []
            for picture in pictures:
                times = [time.thread_time()]
                fits.append(align(picture, reference).fit)
                times.append(time.thread_time())
                compare(picture, reference)
                times.append(time.thread_time())
                aligning.append(1e6 * (times[1] - times[0]))
                comparing.append(1e6 * (times[2] - times[1]))
            shown = (f"{statistics.median(us):,.0f}, {max(us):,.0f} µs" for us in (aligning, comparing))
            table.add_row(str(side), name, *shown, f"{statistics.median(fits):.2f}")
    out.print(table)


if __name__ == "__main__":
    run(app)
