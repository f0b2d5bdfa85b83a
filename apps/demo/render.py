"""Pictures of the demo board: a pure function of component, defect and random generator.

image = render("U-QFP32", "bridged", numpy.random.default_rng(1))   # (160, 160, 3) uint8 RGB
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.demo import cans, chips, leaded
from apps.demo.canvas import Canvas, Pose
from apps.demo.light import picture
from apps.demo.pcb import Style, bare_board, board_style
from apps.demo.site import Site, Truth

Draw = Callable[[Site], None]


@dataclass(frozen=True, slots=True)
class DemoComponent:
    """A component type of the demo board: its drawing, its possible defects, and its count on a board.

    `name_at` is where the reference designator is printed, in pixels from the middle of the image.
    """

    size: int
    prefix: str
    count: int
    defects: tuple[str, ...]
    clear: float
    name_at: tuple[float, float]
    draw: Draw


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMPONENTS: dict[str, DemoComponent] = {
    "R0402-10K": DemoComponent(96, "R", 9, _words("missing cracked shifted rotated tombstone"), 78, (0, -35),
                               lambda s: chips.chip_resistor(s, 54, 28, "103")),
    "R0805-4R7": DemoComponent(112, "R", 5, _words("missing cracked shifted rotated tombstone"), 94, (0, -42),
                               lambda s: chips.chip_resistor(s, 66, 41, "4R7")),
    "C0603-100N": DemoComponent(96, "C", 8, _words("missing cracked shifted rotated tombstone"), 80, (0, -36),
                                lambda s: chips.chip_capacitor(s, 54, 29)),
    "CT-A-10U": DemoComponent(112, "C", 2, _words("missing cracked shifted reversed"), 100, (0, -40),
                              lambda s: chips.moulded(s, 62, 36, (0.62, 0.34, 0.055), (0.16, 0.07, 0.02), "106C",
                                                      (0.17, 0.08, 0.03))),
    "CE-D6-47U": DemoComponent(144, "C", 2, _words("missing damaged shifted reversed"), 124, (0, -60),
                               lambda s: cans.electrolytic(s, 40, ["47", "16V"])),
    "LED-0805-GRN": DemoComponent(112, "D", 3, _words("missing cracked shifted reversed"), 96, (0, -40),
                                  lambda s: chips.led(s, 60, 38)),
    "D-SMA-SS14": DemoComponent(120, "D", 3, _words("missing cracked shifted reversed"), 106, (0, -44),
                                lambda s: chips.moulded(s, 66, 42, (0.040, 0.040, 0.043), (0.50, 0.50, 0.49), "SS14",
                                                        (0.36, 0.36, 0.35))),
    "Y3225-25M": DemoComponent(112, "Y", 1, _words("missing cracked shifted rotated"), 90, (0, -45),
                               lambda s: chips.crystal(s, 62, 48, "25.000")),
    "Q-SOT23-NPN": DemoComponent(112, "Q", 3, _words("missing cracked shifted rotated bridged lifted"), 84, (-42, 0),
                                 lambda s: leaded.sot(s, 58, 30, "1AM")),
    "U-SOIC8-EEPROM": DemoComponent(128, "U", 2, _words("missing cracked shifted rotated bridged lifted reversed"), 112,
                                    (-50, -46), lambda s: leaded.soic(s, 76, 58, ["24C64", "K2417"])),
    "U-QFP32-MCU": DemoComponent(160, "U", 1, _words("missing cracked shifted rotated bridged lifted reversed"), 146,
                                 (-62, -68), lambda s: leaded.qfp(s, 96, 8, ["CM32F0", "K6T6 A", "2446"])),
    "J-PH4": DemoComponent(144, "J", 2, _words("missing cracked shifted rotated bridged lifted"), 124, (-52, -46),
                           lambda s: leaded.wire_socket(s, 98, 62, 4)),
}  # fmt: skip
"""The component types of the demo board, in the order of the board file."""


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """An image, (H, W, 3) uint8 RGB, with the truths for detectors of joints and of polarity marks."""

    image: NDArray[np.uint8]
    joints: tuple[Truth, ...]
    marks: tuple[Truth, ...]


def photograph(
    component: str,
    defect: str | None,
    rng: np.random.Generator,
    *,
    style: Style | None = None,
    refdes: str | None = None,
    several: bool = False,
) -> LabelledImage:
    """Render one place of a board, with its truth.

    `style` is that of the physical board (None: a random one); `several` shows defects of leads at several
    leads, for training. Raises ValueError for a component, or a defect of it, that the demo board does not have.
    """
    kind = COMPONENTS.get(component)
    if kind is None:
        raise ValueError(f"the demo board has no component '{component}'; it has {', '.join(COMPONENTS)}")
    if defect is not None and defect not in kind.defects:
        raise ValueError(f"'{component}' has no defect '{defect}'; it has {', '.join(kind.defects)}")
    style = board_style(rng) if style is None else style
    name = f"{kind.prefix}{int(rng.integers(1, 80))}" if refdes is None else refdes
    x, y = (float(v) for v in rng.uniform(-1.5, 1.5, 2))
    camera = Pose(x, y, float(rng.uniform(-1.2, 1.2)))
    site = Site(Canvas(kind.size, camera), style, rng, defect, name, several)
    bare_board(site.scene, style, rng, kind.clear)
    site.silk_name(*kind.name_at)
    kind.draw(site)
    return LabelledImage(picture(site.scene, rng, style.exposure), tuple(site.joints), tuple(site.marks))


def render(component: str, defect: str | None, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Render one component, good (`defect` None) or with a defect: (size, size, 3) uint8 RGB."""
    return photograph(component, defect, rng).image
