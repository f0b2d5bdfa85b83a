"""Draw an example of a user's board: the files that KiCad writes, and two photographs, rotated and slightly tilted.

    python -m apps.demo.own_board --to build/own

It writes `pnp.csv` (all parts, three fiducials, four mounting holes), `bom.csv` (one part is not fitted) and
`boards/SN1.png`, `boards/SN2.png`. The parts are drawn as boxes with terminations, leads and a mark at pin 1.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Numbers = NDArray[np.float64]

WIDTH_MM, HEIGHT_MM = 62.0, 41.0
ORIGIN = (100.0, -80.0)
"""Where the lower left corner of the board lies in KiCad's frame."""
_UM_FLAT = 25.0
_MASK, _COPPER, _GOLD, _TIN = (38, 92, 58), (50, 112, 70), (214, 186, 110), (196, 198, 200)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of part: its package and value as KiCad writes them, and how it is drawn, in mm at a rotation of 0."""

    package: str
    value: str
    body: tuple[float, float]
    colour: tuple[int, int, int]
    leads: str = "ends"
    """ends (chips), sides (left and right), around, or none."""
    pins: int = 2


KINDS = {
    "r10k": Kind("R_0402_1005Metric", "10k", (1.0, 0.5), (40, 40, 44)),
    "r4k7": Kind("R_0603_1608Metric", "4k7", (1.6, 0.8), (36, 36, 40)),
    "c100n": Kind("C_0402_1005Metric", "100n", (1.0, 0.5), (150, 118, 84)),
    "c1u": Kind("C_0603_1608Metric", "1u", (1.6, 0.8), (158, 126, 92)),
    "c10u": Kind("C_0805_2012Metric", "10u", (2.0, 1.25), (148, 114, 80)),
    "l": Kind("L_1210_3225Metric", "4u7", (3.2, 2.5), (70, 70, 76)),
    "led": Kind("LED_0603_1608Metric", "green", (1.6, 0.8), (226, 226, 196)),
    "d": Kind("D_SOD-123", "BAT54", (2.7, 1.6), (34, 34, 36)),
    "q": Kind("SOT-23", "BC847", (1.3, 2.9), (30, 30, 32), "sides", 4),
    "u8": Kind("SOIC-8_3.9x4.9mm_P1.27mm", "24C64", (3.9, 4.9), (28, 28, 30), "sides", 8),
    "u5": Kind("SOT-23-5", "MCP1700", (1.6, 2.9), (30, 30, 32), "sides", 6),
    "u48": Kind("LQFP-48_7x7mm_P0.5mm", "STM32F103", (7.0, 7.0), (26, 26, 28), "around", 48),
    "u16": Kind("QFN-16-1EP_3x3mm_P0.5mm", "LSM6", (3.0, 3.0), (32, 32, 34), "none"),
    "y": Kind("Crystal_SMD_3225-4Pin_3.2x2.5mm", "8MHz", (3.2, 2.5), (188, 184, 170), "none"),
    "usb": Kind("USB_C_Receptacle_HRO_TYPE-C-31-M-12", "USB-C", (8.9, 7.3), (172, 174, 178), "none"),
    "sw": Kind("SW_SPST_B3U-1000P", "reset", (3.0, 2.5), (206, 200, 190), "ends"),
}
PARTS: tuple[tuple[str, str, float, float, float], ...] = (
    *((f"R{n}", "r10k", 14.0 + 2.4 * (n - 1), 8.0, 90.0 * (n % 2)) for n in range(1, 9)),
    *((f"R{n}", "r4k7", 40.0 + 3.0 * (n - 9), 6.5, 90.0) for n in range(9, 13)),
    *((f"C{n}", "c100n", 23.0 + 2.2 * (n - 1), 31.5, 90.0 if n % 3 else 0.0) for n in range(1, 11)),
    *(("C11", "c1u", 14.0, 15.0, 0.0), ("C12", "c1u", 14.0, 18.0, 180.0), ("C13", "c10u", 50.0, 28.0, 90.0)),
    *(("C14", "c10u", 54.0, 28.0, 270.0), ("L1", "l", 52.0, 22.0, 0.0), ("D1", "led", 12.0, 35.0, 0.0)),
    *(("D2", "led", 16.0, 35.0, 180.0), ("D3", "d", 47.0, 34.5, 0.0), ("Q1", "q", 40.0, 13.0, 0.0)),
    *(("Q2", "q", 45.0, 13.0, 90.0), ("U1", "u48", 30.0, 21.0, 45.0), ("U2", "u8", 43.0, 22.0, 90.0)),
    *(("U3", "u5", 52.0, 13.0, 180.0), ("U4", "u16", 19.0, 25.0, 0.0), ("Y1", "y", 21.5, 16.0, 90.0)),
    *(("J1", "usb", 5.0, 20.5, 270.0), ("SW1", "sw", 57.5, 36.0 - 3.5, 0.0)),
)
NOT_FITTED = "R12"
FIDUCIALS = {"FID1": (9.0, 3.0), "FID2": (57.0, 10.0), "FID3": (9.0, 38.0)}
HOLES = {"H1": (3.2, 3.2), "H2": (58.8, 3.2), "H3": (3.2, 37.8), "H4": (58.8, 37.8)}


def placements() -> str:
    """Return the placement file, as KiCad writes it in English."""
    lines = ["Ref,Val,Package,PosX,PosY,Rot,Side"]
    rows = [(refdes, KINDS[kind].value, KINDS[kind].package, x, y, angle) for refdes, kind, x, y, angle in PARTS]
    rows += [(name, "Fiducial", "Fiducial_1mm_Mask2mm", *at, 0.0) for name, at in FIDUCIALS.items()]
    rows += [(name, "MountingHole", "MountingHole_3.2mm_M3", *at, 0.0) for name, at in HOLES.items()]
    for refdes, value, package, x, y, angle in rows:
        at = f"{ORIGIN[0] + x:.6f},{ORIGIN[1] + y:.6f}"
        lines.append(f'"{refdes}","{value}","{package}",{at},{angle:.6f},top')
    return "\n".join(lines) + "\n"


def bom() -> str:
    """Return the bill of materials, with a line for each kind of part."""
    lines = ['"Reference","Value","Footprint","Qty","DNP"']
    for name, kind in KINDS.items():
        refdes = [part[0] for part in PARTS if part[1] == name and part[0] != NOT_FITTED]
        lines.append(f'"{",".join(refdes)}","{kind.value}","{kind.package}",{len(refdes)},""')
    lines.append(f'"{NOT_FITTED}","4k7","R_0603_1608Metric",1,"DNP"')
    return "\n".join(lines) + "\n"


def flat_board(rng: np.random.Generator, without: frozenset[str] = frozenset()) -> Pixels:
    """Return a board straight from above, (H, W, 3) uint8 RGB; parts `without` are missing."""
    size = round(WIDTH_MM * 1000 / _UM_FLAT), round(HEIGHT_MM * 1000 / _UM_FLAT)
    board = np.full((size[1], size[0], 3), _MASK, np.uint8)
    tracks = np.random.default_rng(7)  # all boards have the same tracks and vias
    for _ in range(120):
        x, y = tracks.uniform(2, WIDTH_MM - 2), tracks.uniform(2, HEIGHT_MM - 2)
        for dx, dy in tracks.choice([(9, 0), (0, 7), (4, 4), (-5, 5)], 2):
            _line(board, (x, y), (x + dx, y + dy), 0.25, _COPPER)
            x, y = x + dx, y + dy
        _disc(board, x, y, 0.6, _COPPER)
        _disc(board, x, y, 0.3, (24, 40, 30))
    for x, y in FIDUCIALS.values():
        _disc(board, x, y, 2.0, (26, 60, 38))
        _disc(board, x, y, 1.0, _GOLD)
    for x, y in HOLES.values():
        _disc(board, x, y, 4.6, _TIN)
        _disc(board, x, y, 3.2, (30, 31, 33))
    for refdes, kind, x, y, angle in PARTS:
        text = (round((x - 0.8) * 1000 / _UM_FLAT), round((HEIGHT_MM - y - 1.6) * 1000 / _UM_FLAT))
        cv2.putText(board, refdes, text, cv2.FONT_HERSHEY_SIMPLEX, 0.7, (208, 212, 208), 2, cv2.LINE_AA)
        _pads(board, KINDS[kind], x, y, angle)
        if refdes not in (*without, NOT_FITTED):
            shift = rng.normal(0, 0.03, 2)
            _draw(board, KINDS[kind], x + shift[0], y + shift[1], angle + rng.normal(0, 0.6))
    return board


def photograph(
    board: Pixels,
    rng: np.random.Generator,
    *,
    turn_deg: float = 90.0,
    um_per_pixel: float = 41.2,
    keystone: tuple[float, float] = (0.01, -0.006),
) -> tuple[Pixels, Numbers]:
    """Return a photograph of a board on a table, (H, W, 3) uint8 RGB, and the map (3, 3) from its mm to the pixels.

    The millimetres are those of the placement file. The board lies turned counterclockwise by about `turn_deg`, off the
    middle; half a picture to the right (below) it is smaller by `keystone`.
    """
    scale, turn = 1000 / um_per_pixel, np.radians(turn_deg + rng.uniform(-0.8, 0.8))
    lying = abs(np.sin(turn)) > 0.7
    sides = (HEIGHT_MM, WIDTH_MM) if lying else (WIDTH_MM, HEIGHT_MM)
    width, height = (round(side * scale * 1.22) for side in sides)
    middle = np.array([width, height]) * 0.5 + rng.uniform(-0.03, 0.03, 2) * (width, height)
    to_middle = np.array([[1, 0, -ORIGIN[0] - WIDTH_MM / 2], [0, 1, -ORIGIN[1] - HEIGHT_MM / 2], [0, 0, 1.0]])
    cos, sin = scale * np.cos(turn), scale * np.sin(turn)
    turned = np.array([[cos, -sin, 0], [-sin, -cos, 0], [0, 0, 1.0]])
    slant = np.eye(3)
    slant[2, :2] = np.array(keystone) / (max(width, height) / 2)
    moved = np.array([[1, 0, middle[0]], [0, 1, middle[1]], [0, 0, 1.0]])
    seen = moved @ slant @ turned @ to_middle
    flat = 1000 / _UM_FLAT
    to_mm = np.array(
        [[1 / flat, 0, ORIGIN[0] + 0.5 / flat], [0, -1 / flat, ORIGIN[1] + HEIGHT_MM - 0.5 / flat], [0, 0, 1]]
    )
    table = np.full((height, width, 3), (112, 104, 96), np.float32) + rng.normal(0, 5, (height, width, 1))
    soft = cv2.GaussianBlur(board, (0, 0), 0.35 * um_per_pixel / _UM_FLAT).astype(np.float32)
    inside = cv2.warpPerspective(np.ones(board.shape[:2], np.float32), seen @ to_mm, (width, height))
    shown = cv2.warpPerspective(soft, seen @ to_mm, (width, height), flags=cv2.INTER_LINEAR)
    picture = table * (1 - inside[..., None]) + shown * inside[..., None]
    light = 1 + rng.uniform(-0.06, 0.06) * np.linspace(-1, 1, width)[None, :, None]
    picture = picture * light + rng.normal(0, 2.0, (height, width, 1))
    return np.clip(np.round(picture), 0, 255).astype(np.uint8), seen


def build(to: Path, seed: int = 1, without: frozenset[str] = frozenset()) -> list[Numbers]:
    """Write the files and two photographs of good boards; return the maps from mm to their pixels."""
    (to / "boards").mkdir(parents=True, exist_ok=True)
    (to / "pnp.csv").write_text(placements(), encoding="utf-8")
    (to / "bom.csv").write_text(bom(), encoding="utf-8")
    maps = []
    for number in (1, 2):
        rng = np.random.default_rng([seed, number])
        picture, seen = photograph(flat_board(rng, without), rng)
        cv2.imwrite(str(to / "boards" / f"SN{number}.png"), picture[..., ::-1])
        maps.append(seen)
    return maps


def _at(x: float, y: float) -> tuple[int, int]:
    return round(x * 1000 / _UM_FLAT * 16), round((HEIGHT_MM - y) * 1000 / _UM_FLAT * 16)


def _disc(board: Pixels, x: float, y: float, diameter: float, colour: tuple[int, int, int]) -> None:
    centre = tuple(value - 8 for value in _at(x, y))
    cv2.circle(board, centre, round(diameter * 500 / _UM_FLAT * 16), colour, -1, cv2.LINE_AA, 4)


def _line(board: Pixels, a: tuple[float, float], b: tuple[float, float], wide: float, colour: object) -> None:
    cv2.line(board, _at(*a), _at(*b), colour, round(wide * 1000 / _UM_FLAT), cv2.LINE_AA, 4)  # type: ignore[call-overload]


def _box(
    board: Pixels, at: tuple[float, float, float], box: tuple[float, float, float, float], colour: tuple[int, ...]
) -> None:
    """Fill a box (left, bottom, right, top) of a part's own frame."""
    x, y, angle = at
    turn = np.radians(angle)
    corners = [(box[0], box[1]), (box[2], box[1]), (box[2], box[3]), (box[0], box[3])]
    points = [_at(x + u * np.cos(turn) - v * np.sin(turn), y + u * np.sin(turn) + v * np.cos(turn)) for u, v in corners]
    cv2.fillPoly(board, [np.array(points, np.int32) - 8], colour, cv2.LINE_AA, 4)


def _leads(kind: Kind, reach: float, wide: float) -> list[tuple[float, float, float, float]]:
    """Return the boxes of leads, which reach over the body."""
    width, height = kind.body[0] / 2, kind.body[1] / 2
    if kind.leads == "ends":
        return [(-width - reach, -height, -width + 0.3, height), (width - 0.3, -height, width + reach, height)]
    if kind.leads == "none":
        return []
    a_side = kind.pins // (4 if kind.leads == "around" else 2)
    pitch = 2 * height / a_side
    places = [(index - (a_side - 1) / 2) * pitch for index in range(a_side)]
    boxes = [(-width - reach, at - wide * pitch, width + reach, at + wide * pitch) for at in places]
    if kind.leads == "around":
        boxes += [(at - wide * pitch, -height - reach, at + wide * pitch, height + reach) for at in places]
    return boxes


def _pads(board: Pixels, kind: Kind, x: float, y: float, angle: float) -> None:
    for box in _leads(kind, 0.25 if kind.leads == "ends" else 1.1, 0.3):
        _box(board, (x, y, angle), box, _TIN)


def _draw(board: Pixels, kind: Kind, x: float, y: float, angle: float) -> None:
    at = (x, y, angle)
    if kind.leads in ("sides", "around"):
        for box in _leads(kind, 1.0, 0.22):
            _box(board, at, box, (224, 224, 226))
    width, height = kind.body[0] / 2, kind.body[1] / 2
    _box(board, at, (-width, -height, width, height), kind.colour)
    if kind.leads == "ends":
        for left, right in ((-width, -width * 0.6), (width * 0.6, width)):
            _box(board, at, (left, -height, right, height), (206, 206, 204))
    if kind.leads in ("sides", "around", "none"):
        mark = min(width, height) * 0.5
        _box(
            board, at, (-width * 0.85, height * 0.9 - mark * 0.5, -width * 0.85 + mark * 0.5, height * 0.9), (232,) * 3
        )


def main(arguments: list[str] | None = None) -> None:
    """Write what the options ask for."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.own_board", description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("build/own"), help="folder for the files (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    options = parser.parse_args(arguments)
    build(options.to, options.seed)
    print(f"written: a placement file, a BOM and two photographs, in {options.to}")


if __name__ == "__main__":
    main()
