"""The bare board under a component: solder mask, traces, vias, silkscreen, pads and solder."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from apps.demo.canvas import SS, Canvas, Colour, Mask, Points, Pose, window_of

SILK: Colour = (0.86, 0.87, 0.84)
TIN: Colour = (0.74, 0.74, 0.74)
GOLD: Colour = (0.92, 0.70, 0.34)
COPPER: Colour = (0.72, 0.42, 0.25)

_MASKS: tuple[tuple[Colour, float], ...] = (
    ((0.020, 0.190, 0.085), 0.46),  # green, the usual
    ((0.045, 0.250, 0.075), 0.18),  # lighter green
    ((0.025, 0.080, 0.270), 0.16),  # blue
    ((0.300, 0.035, 0.040), 0.10),  # red
    ((0.035, 0.036, 0.042), 0.10),  # black
)


@dataclass(frozen=True, slots=True)
class Style:
    """The look that all places of a physical board share."""

    mask: Colour
    gold: bool
    exposure: float


def board_style(rng: np.random.Generator, even: bool = False) -> Style:
    """Choose the solder mask, the finish of the pads and the exposure of one board.

    Masks are as frequent as on the market, or `even`: training needs rare masks as often as green ones.
    """
    chosen = _MASKS[int(rng.choice(len(_MASKS), p=None if even else [share for _, share in _MASKS]))][0]
    hue = np.asarray(chosen) * rng.uniform(0.85, 1.2, 3)
    return Style(
        (float(hue[0]), float(hue[1]), float(hue[2])), bool(rng.random() < 0.5), float(rng.uniform(0.94, 1.06))
    )


def bare_board(scene: Canvas, style: Style, rng: np.random.Generator, clear: float) -> None:
    """Cover a scene with solder mask over traces and vias that keep out of a square of side `clear` in the middle."""
    side = scene.height.shape[0]
    scene.albedo[:] = style.mask
    scene.gloss[:] = 0.10
    weave = rng.standard_normal((side // 4, side // 4), dtype=np.float32)
    weave = cv2.resize(cv2.GaussianBlur(weave, (0, 0), 1.0), (side, side), interpolation=cv2.INTER_CUBIC)
    scene.albedo *= (1.0 + 0.16 * weave)[..., None].clip(0.7, 1.4)

    lighter: Colour = tuple(min(1.0, c * 1.7 + 0.035) for c in style.mask)
    half = scene.size / 2
    for _ in range(int(rng.integers(2, 6))):
        mask = scene.line(_trace(rng, half, clear / 2), float(rng.choice([2.0, 2.6, 4.0])))
        scene.paint(mask, lighter, 0.16)
        scene.raise_(mask, 0.7, 0.8)
    if rng.random() < 0.45:  # a poured plane along one edge
        edge = half - rng.uniform(3, 10)
        mask = scene.rect(0, half + edge, scene.size + 8, scene.size, Pose(angle=90.0 * int(rng.integers(4))))
        scene.paint(mask, lighter, 0.16)
        scene.raise_(mask, 0.7, 0.8)
    for _ in range(int(rng.integers(0, 4))):
        x, y = _outside(rng, half - 4, clear / 2 + 4)
        _via(scene, x, y, style)


def _trace(rng: np.random.Generator, half: float, keep: float) -> Points:
    """Return a trace with one 45-degree bend that passes the component at a distance."""
    away = float(rng.uniform(min(keep, half - 5), half - 1)) * float(rng.choice([-1, 1]))
    bend = float(rng.uniform(-half, half))
    jog = float(rng.uniform(4, 12)) * (1 if away > 0 else -1)
    points = [(-half - 4, away), (bend, away), (bend + abs(jog), away + jog), (half + 4, away + jog)]
    return [(y, x) for x, y in points] if rng.random() < 0.5 else points


def _outside(rng: np.random.Generator, half: float, keep: float) -> tuple[float, float]:
    along, away = (
        float(rng.uniform(-half, half)),
        float(rng.uniform(min(keep, half - 1), half)) * int(rng.choice([-1, 1])),
    )
    return (along, away) if rng.random() < 0.5 else (away, along)


def _via(scene: Canvas, x: float, y: float, style: Style) -> None:
    ring = scene.disc(x, y, 3.4)
    scene.paint(ring, tuple(min(1.0, c * 1.9 + 0.05) for c in style.mask), 0.2)
    scene.raise_(ring, 0.8, 0.8)
    hole = scene.disc(x, y, 1.5)
    scene.paint(hole, (0.02, 0.02, 0.02), 0.0)
    scene.shift_height(hole, -1.6)


def print_silk(scene: Canvas, mask: Mask, rng: np.random.Generator, worn: float = 0.25) -> None:
    """Print white ink, slightly uneven and with a little relief."""
    window = window_of(mask)
    if window is None:
        return
    h, w = mask[window].shape
    coarse = rng.random((h // 6 + 2, w // 6 + 2), dtype=np.float32)
    cover = 1.0 - worn * cv2.resize(coarse, (w, h), interpolation=cv2.INTER_LINEAR)
    ink = mask.copy()
    ink[window] = (mask[window] * cover).astype(np.uint8)
    scene.paint(ink, SILK, 0.04)
    scene.shift_height(ink, 0.25)


def pad(scene: Canvas, x: float, y: float, w: float, h: float, style: Style) -> None:
    """Open the solder mask over a copper pad with its finish."""
    bare = scene.rect(x, y, w + 1.6, h + 1.6, corner=1.2)
    scene.paint(bare, tuple(c * 0.55 + 0.02 for c in style.mask), 0.05)
    scene.raise_(bare, 0.0, 0.5, base=-0.5)
    metal = scene.rect(x, y, w, h, corner=0.8)
    scene.paint(metal, GOLD if style.gold else TIN, 0.62)
    scene.raise_(metal, 0.35, 0.6, base=0.0)


def solder(scene: Canvas, mask: Mask, top: float, rng: np.random.Generator, shine: float = 0.9) -> None:
    """Wet a mask with solder: a dome with the grain of a reflowed joint."""
    scene.paint(mask, TIN, shine)
    window = window_of(mask)
    if window is None:
        return
    short = min(mask[window].shape) / SS
    scene.raise_(mask, top, max(short * 0.46, 1.0))
    scene.roughen(mask, rng, 0.06)


def paste(scene: Canvas, x: float, y: float, w: float, h: float, rng: np.random.Generator) -> None:
    """Lay a deposit of solder on a pad that no part came down on: a rounded, frosty lump."""
    wide, high = w * rng.uniform(0.78, 0.95), h * rng.uniform(0.78, 0.95)
    lump = scene.rect(x + rng.uniform(-0.5, 0.5), y + rng.uniform(-0.5, 0.5), wide, high, corner=min(w, h) * 0.45)
    solder(scene, lump, float(rng.uniform(2.0, 3.2)), rng, shine=0.72)
