"""Codes as a camera sees them on boards and labels: are they read, and is one ever read wrong?

    python -m apps.demo.codes --codes 200

The codes are made by segno (QR), ppf-datamatrix and python-barcode (Code 128), none of which knows the reader. Each is
printed with two to four pixels a module and seen turned, blurred, dim, unevenly lit and noisy, alone in its window or
on a label or a board that is larger; a quarter of the QR codes and DataMatrix are bright on dark, as a laser marks.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from coe.cli.console import Console
from coe.pictures.codes import USUAL, read_codes

FIRST_SEED = 8001
_FINE, _OVER = 8, 4
"""Pixels of a module as it is drawn, and how many times finer than the camera's pixels the scene is seen first."""
_BAR_HEIGHT = 30
QUIET = {"QRCode": 4, "DataMatrix": 2, "Code128": 10}
"""The modules of white around a code that its standard asks for, and one more for DataMatrix."""


def modules(format: str, text: str) -> NDArray[np.uint8]:
    """Return the modules of a code, 1 for dark, (rows, columns); bars are 30 modules high."""
    if format == "QRCode":
        import segno

        return np.array([list(row) for row in segno.make_qr(text, error="m").matrix], np.uint8)
    if format == "DataMatrix":
        from ppf.datamatrix import DataMatrix

        return np.array(DataMatrix(text).matrix, np.uint8)
    import barcode

    bars = barcode.get("code128", text).build()[0]
    return np.repeat(np.array([[int(bar) for bar in bars]], np.uint8), _BAR_HEIGHT, 0)


@dataclass(frozen=True, slots=True)
class Seeing:
    """How a code is seen: pixels a module, degrees, the blur's sigma in pixels, contrast and noise from 0 to 1.

    `around` is the side of the picture, in which the rest is of a brightness `ground`; 0 is as large as the code.
    """

    pixels: float
    degrees: float
    blur: float = 0.4
    contrast: float = 0.8
    noise: float = 0.01
    inverted: bool = False
    around: int = 0
    ground: float = 0.1


def photograph(dark: NDArray[np.uint8], quiet: int, seeing: Seeing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a picture of a code with its white border, (H, W, 3) uint8 RGB."""
    bordered = np.pad(dark, quiet)
    fine = np.kron(1 - bordered, np.ones((_FINE, _FINE), np.uint8)).astype(np.float32)
    reach = int(np.ceil(np.hypot(*bordered.shape) * seeing.pixels)) + 10
    side = max(seeing.around, reach)
    scale, turn = seeing.pixels * _OVER / _FINE, np.radians(seeing.degrees)
    motion = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    middle = np.array(fine.shape[::-1]) / 2
    shift = side * _OVER / 2 + rng.uniform(-0.5, 0.5, 2) * _OVER - motion @ middle
    paper = 1.0 if not seeing.around else seeing.ground
    size = (side * _OVER, side * _OVER)
    seen = cv2.warpAffine(fine, np.column_stack([motion, shift]), size, flags=cv2.INTER_LINEAR, borderValue=paper)
    picture = cv2.GaussianBlur(cv2.resize(seen, (side, side), interpolation=cv2.INTER_AREA), (0, 0), seeing.blur)
    picture = 1 - picture if seeing.inverted else picture
    across = np.linspace(-1, 1, side, dtype=np.float32)
    light = 1 + rng.uniform(-0.15, 0.15) * across[None] + rng.uniform(-0.15, 0.15) * across[:, None]
    level = seeing.contrast / 2 + rng.uniform(0, 1 - seeing.contrast) * 0.8
    grey = (level + seeing.contrast * (picture - 0.5)) * light + rng.normal(0, seeing.noise, picture.shape)
    return np.repeat(np.clip(np.round(grey * 255), 0, 255).astype(np.uint8)[..., None], 3, 2)


def seen_at_random(rng: np.random.Generator, pixels: float, *, marked: bool) -> Seeing:
    """Return one of the ways in which a camera sees a code, which may be bright on dark if it is `marked`."""
    return Seeing(
        pixels,
        float(rng.uniform(0, 360)) if rng.random() < 0.5 else float(rng.choice([0, 90, 180, 270]) + rng.uniform(-8, 8)),
        float(rng.uniform(0.3, 0.6)),
        float(rng.uniform(0.25, 0.85)),
        float(rng.uniform(0.005, 0.015)),
        marked and bool(rng.random() < 0.25),
        int(rng.choice([0, 0, 480])),
        float(rng.choice([0.1, 0.45, 1.0])),
    )


@dataclass(slots=True)
class Readings:
    """How many codes there were, how many were read, and how many were read as another."""

    codes: int = 0
    read: int = 0
    wrong: int = 0
    seconds: float = 0.0


def measure(format: str, pixels: float, number: int, seed: int) -> Readings:
    """Make, photograph and read codes; the reader looks for all usual formats."""
    readings = Readings()
    for index in range(number):
        rng = np.random.default_rng([seed, USUAL.index(format), round(10 * pixels), index])
        text = f"SN{rng.integers(10**8):08d}"
        picture = photograph(
            modules(format, text), QUIET[format], seen_at_random(rng, pixels, marked=format != "Code128"), rng
        )
        begun = time.thread_time()
        sure = [code.text for code in read_codes(picture) if code.is_sure]
        readings.seconds += time.thread_time() - begun
        readings.codes += 1
        readings.read += sure == [text]
        readings.wrong += any(other != text for other in sure)
    return readings


def main(arguments: list[str] | None = None) -> None:
    """Measure and print a table; exit status 1 if a code was read wrong, or fewer than 99 % were read."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.codes", description=__doc__)
    parser.add_argument("--codes", type=int, default=200, help="codes of each row (%(default)s)")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="seed of the codes (%(default)s)")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    table = Table(title="codes that a camera sees", title_justify="left")
    for heading in ("format", "pixels a module", "codes", "read", "read wrong", "ms of one core a picture"):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    console, total = Console(width=120), Readings()
    for format in USUAL:
        for pixels in (2.0, 3.0, 4.0):
            console.print(f"reading {options.codes} of {format} with {pixels:g} pixels a module")
            one = measure(format, pixels, options.codes, options.seed)
            share = f"{one.read} ({one.read / one.codes:.1%})"
            took = f"{1000 * one.seconds / one.codes:.0f}"
            table.add_row(format, f"{pixels:g}", str(one.codes), share, str(one.wrong), took)
            total.codes, total.read, total.wrong = (
                total.codes + one.codes,
                total.read + one.read,
                total.wrong + one.wrong,
            )
    console.print(table)
    console.print(f"{total.read} of {total.codes} read ({total.read / total.codes:.2%}), {total.wrong} read wrong")
    raise SystemExit(0 if not total.wrong and total.read >= 0.99 * total.codes else 1)


if __name__ == "__main__":
    main()
