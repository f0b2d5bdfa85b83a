"""Two-terminal parts: resistors, capacitors, LEDs, moulded bodies, and a crystal in its can."""

from __future__ import annotations

from apps.demo.canvas import Colour, Points, Pose
from apps.demo.pcb import GOLD, solder
from apps.demo.site import Finish, Site

CERAMIC: Colour = (0.80, 0.79, 0.74)
BLACK: Colour = (0.035, 0.034, 0.036)


def _land(site: Site, length: float, width: float, reach: float) -> None:
    """Draw the two pads of a part and the solder on them."""
    x, w, h = length / 2 + reach * 0.22, length * 0.20 + reach, width * 1.06
    site.pads([(-x, 0, w, h), (x, 0, w, h)])
    if site.defect == "missing":
        return
    starved = site.defect == "tombstone" and site.either()
    for side in (-1, 1):
        if side == starved:
            continue
        site.fillet(side * x, 0, w * 0.97, h * 0.92)


def _tombstone(site: Site, length: float, width: float, face: Colour) -> None:
    """Stand a chip on one end: seen from above, its end face and a long cast side."""
    side = site.either()
    x = side * (length / 2 - 1.0)
    pose = Pose(x + site.uniform(-1, 1), site.uniform(-1, 1), site.uniform(-9, 9))
    deep = length * 0.40
    site.block(pose, deep, width, face, 5.5, Finish(0.8), (-side * deep * 0.15, 0.0))
    site.metal(pose, side * deep * 0.28, 0, deep * 0.62, width * 1.0, 9.5, 1.4)


def chip_resistor(site: Site, length: float, width: float, code: str) -> None:
    """A thick-film resistor: white ceramic, black glass with its code, wrapped terminals."""
    _land(site, length, width, length * 0.22)
    if site.defect == "missing":
        return
    if site.defect == "tombstone":
        _tombstone(site, length, width, CERAMIC)
        return
    pose = site.placed(length, width)
    end = length * site.uniform(0.17, 0.20)
    site.block(pose, length * 0.98, width, CERAMIC, 4.0, Finish(0.8))
    for side in (-1, 1):
        site.metal(pose, side * (length - end) / 2, 0, end, width * 1.02, 4.5)
    tone = site.uniform(0.8, 1.5)
    glass = (BLACK[0] * tone, BLACK[1] * tone, BLACK[2] * tone * 1.1)
    site.block(pose, length - 2 * end + 0.6, width * 0.93, glass, 4.7, Finish(0.9, 0.20))
    site.write(pose, code, width * 0.36, (0.34, 0.34, 0.33))
    if site.defect == "cracked":
        site.crack(pose, length * 0.74, width * 0.98, CERAMIC)


def chip_capacitor(site: Site, length: float, width: float) -> None:
    """A ceramic capacitor: an unmarked brown block with wrapped terminals."""
    _land(site, length, width, length * 0.22)
    if site.defect == "missing":
        return
    tone, warm = site.uniform(0.8, 1.2), site.uniform(0.9, 1.1)
    brown: Colour = (0.50 * tone * warm, 0.36 * tone, 0.235 * tone / warm)
    if site.defect == "tombstone":
        _tombstone(site, length, width, brown)
        return
    pose = site.placed(length, width)
    end = length * site.uniform(0.19, 0.23)
    site.block(pose, length * 0.98, width * 0.98, brown, 5.6, Finish(1.8, 0.16))
    for side in (-1, 1):
        site.metal(pose, side * (length - end) / 2, 0, end, width * 1.03, 6.0, 1.8)
    if site.defect == "cracked":
        site.crack(pose, length * 0.66, width, (0.10, 0.09, 0.085))


def led(site: Site, length: float, width: float) -> None:
    """A chip LED under clear resin; a green bar and corner mark the cathode, to the left."""
    scene = site.scene
    _land(site, length, width, length * 0.20)
    site.silk_bar(-length * 0.84, 0, 3.4, width * 1.05)
    if site.defect == "missing":
        return
    pose = site.placed(length, width)
    if site.defect == "reversed":
        pose = pose.turned(180.0)
    end = length * 0.20
    site.block(pose, length, width * 0.96, (0.82, 0.82, 0.74), 2.6, Finish(0.7))
    for side in (-1, 1):
        site.metal(pose, side * (length - end) / 2, 0, end, width * 0.96, 3.0, 0.8)
    die = scene.rect(1.2, 0, width * 0.22, width * 0.22, pose)
    scene.paint(die, (0.78, 0.62, 0.20), 0.5)
    scene.paint(scene.line([(1.2, 0), (length * 0.26, -width * 0.10)], 0.6, pose), GOLD, 0.5)
    green: Colour = (0.03, site.uniform(0.32, 0.42), 0.16)
    bar = scene.rect(-length * 0.255, 0, length * 0.12, width * 0.90, pose)
    scene.paint(bar, green, 0.1)
    flag = scene.polygon([(-length * 0.20, -width * 0.36), (-length * 0.04, 0), (-length * 0.20, width * 0.36)], pose)
    scene.paint(flag, green, 0.1)
    lens = scene.rect(0, 0, length - 2 * end, width * 0.94, pose, 1.5)
    scene.raise_(lens, 6.0, 3.2)
    scene.paint(lens, (0.95, 0.95, 0.82), 0.38, 0.18)
    if site.defect == "cracked":
        site.crack(pose, length * 0.66, width * 0.96, (0.16, 0.15, 0.13))
    a, b = -length * 0.52, width * 0.56
    far = -length * 0.91 if site.defect != "reversed" else a
    site.mark([(far, -b), (-length * 0.04, -b), (-length * 0.04, b), (far, b)], pose)


def moulded(site: Site, length: float, width: float, body: Colour, band: Colour, text: str, ink: Colour) -> None:
    """A tantalum capacitor or a diode: a moulded block on folded leads, with a band at its marked end, to the left."""
    lead = length * 0.16
    x, w, h = length / 2 + lead * 0.15, lead * 2.6, width * 0.74
    site.pads([(-x, 0, w, h), (x, 0, w, h)])
    site.silk_bar(-length * 0.79, 0, 2.8, width * 0.92)
    for side in (-1, 1):
        points: Points = [(-length * 0.42, side * width * 0.64), (length * 0.42, side * width * 0.64)]
        scene_line = site.scene.line(points, 1.2)
        site.scene.paint(scene_line, (0.84, 0.85, 0.82), 0.04, 0.9)
    if site.defect == "missing":
        return
    for side in (-1, 1):
        site.fillet(side * (x + lead * 0.3), 0, w * 0.75, h * 0.92)
    pose = site.placed(length, width)
    if site.defect == "reversed":
        pose = pose.turned(180.0)
    for side in (-1, 1):
        site.metal(pose, side * (length / 2 + lead * 0.10), 0, lead * 1.2, width * 0.52, 3.2, 1.4)
    tone = site.uniform(0.88, 1.12)
    site.block(pose, length, width, (body[0] * tone, body[1] * tone, body[2] * tone), 7.5, Finish(2.4, 0.14, 1.0))
    strip = site.scene.rect(-length * 0.34, 0, length * 0.15, width * 0.96, pose)
    site.scene.paint(strip, band, 0.08)
    site.write(pose, text, width * 0.30, ink, x=length * 0.10)
    if site.defect == "cracked":
        site.crack(pose, length * 0.94, width, (0.84, 0.81, 0.74))
    a, b = -length * 0.52, width * 0.52
    far = -length * 0.92 if site.defect != "reversed" else a
    site.mark([(far, -b), (-length * 0.22, -b), (-length * 0.22, b), (far, b)], pose)


def crystal(site: Site, length: float, width: float, text: str) -> None:
    """A crystal in a seam-welded metal can on four pads."""
    px, py, w, h = length * 0.36, width * 0.34, length * 0.34, width * 0.36
    site.pads([(sx * px, sy * py, w, h) for sx in (-1, 1) for sy in (-1, 1)])
    site.silk_corners(length * 1.36, width * 1.5, 7)
    if site.defect == "missing":
        return
    for sx in (-1, 1):
        for sy in (-1, 1):
            rim = site.scene.rect(sx * (px + 1.5), sy * (py + 1.2), w * 0.9, h * 0.9, corner=2)
            solder(site.scene, rim, 1.6, site.rng)
    pose = site.placed(length, width)
    site.block(pose, length, width, (0.52, 0.46, 0.36), 4.0, Finish(0.8, 0.25, 1.6))
    site.block(pose, length * 0.93, width * 0.90, (0.86, 0.66, 0.34), 5.0, Finish(0.8, 0.7, 2.2))
    tone = site.uniform(0.85, 1.0)
    site.block(pose, length * 0.84, width * 0.78, (0.66 * tone, 0.66 * tone, 0.65 * tone), 7.0, Finish(1.6, 0.55, 3.0))
    site.write(pose, text, width * 0.21, (0.10, 0.10, 0.10), y=-width * 0.13)
    site.write(pose, f"TX{int(site.rng.integers(10, 99))}", width * 0.17, (0.12, 0.12, 0.12), y=width * 0.18)
    if site.defect == "cracked":
        site.crack(pose, length * 0.9, width * 0.86, (0.12, 0.10, 0.08))
