"""Parts with rows of leads: SOT, SOIC, QFP and a wire socket."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, radians, sin

import numpy as np

from apps.demo.canvas import Colour, Points, Pose
from apps.demo.chips import BLACK
from apps.demo.pcb import COPPER, GOLD, TIN, pad, paste, print_silk, solder
from apps.demo.site import Finish, Site, Truth


@dataclass(frozen=True, slots=True)
class Lead:
    """A lead that leaves the body at (x, y), in the direction `angle`, in degrees clockwise from +x."""

    x: float
    y: float
    angle: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """The equal leads of a part: length outside the body, width, and how far the pad reaches beyond the tip."""

    leads: tuple[Lead, ...]
    length: float
    width: float
    pad_width: float
    reach: float


def row(x: float, y: float, pitch: float, count: int, angle: float) -> list[Lead]:
    """Return `count` leads side by side, centred on (x, y), that point in one direction."""
    across = radians(angle + 90)
    steps = [(i - (count - 1) / 2) * pitch for i in range(count)]
    return [Lead(x + step * cos(across), y + step * sin(across), angle) for step in steps]


def solder_leads(site: Site, footprint: Footprint, body: Pose) -> None:
    """Draw pads, leads and their solder, with bridged or lifted leads if that is the defect; record the truths."""
    scene, rng, leads = site.scene, site.rng, footprint.leads
    span, wide = footprint.length, footprint.pad_width
    for lead in leads:
        with_pad(site, footprint, lead)
    if site.defect == "missing":
        return
    aligned = site.defect not in {"shifted", "rotated"}
    bridges = _bridges(site, leads)
    joined = {i for pair in bridges for i in pair}
    lifted = _lifted(site, leads) - joined
    for i, lead in enumerate(leads):
        here = Pose(lead.x, lead.y, lead.angle)
        reach = span + footprint.reach
        if i in lifted:
            side = site.uniform(-0.30, 0.30) * wide
            dry = scene.rect(span * 0.65 + footprint.reach * 0.5, 0, reach * 0.84, wide * 0.98, here, 0.8)
            tone = site.uniform(0.55, 0.95)
            scene.paint(dry, (COPPER[0] * tone, COPPER[1] * tone, COPPER[2] * tone), 0.25)
            bent = here.turned(site.uniform(-9, 9))
            bent = Pose(bent.x + site.uniform(-0.4, 0.4), bent.y + site.uniform(-0.4, 0.4), bent.angle)
            pose = Pose(body.x, body.y, body.angle)
            draw_lead(site, footprint, _on(pose, bent), 5.2, side)
        else:
            heel = scene.rect(span * 0.62 + footprint.reach * 0.38, 0, reach * 0.78, wide * site.uniform(0.88, 1.0),
                              here, wide * 0.4)  # fmt: skip
            solder(scene, heel, site.uniform(2.0, 2.7), rng)
            draw_lead(site, footprint, _on(body, here), 2.6, 0.0)
        b = wide / 2 + 0.6
        if aligned and i not in joined:
            label = "lifted" if i in lifted else "joint"
            corners: Points = [(0, -b), (reach + 0.6, -b), (reach + 0.6, b), (0, b)]
            site.joints.append(Truth(label, scene.extent(corners, here)))
    for i, j in bridges:
        bridge(site, footprint, leads[i], leads[j])


def _bridges(site: Site, leads: tuple[Lead, ...]) -> list[tuple[int, int]]:
    """Choose the neighbours that solder will join: one pair, or several that have no lead in common."""
    pairs = [(i, i + 1) for i in range(len(leads) - 1) if leads[i].angle == leads[i + 1].angle]
    chosen = [pairs[int(site.rng.integers(len(pairs)))]] if site.defect == "bridged" else []
    for pair in pairs:
        if site.mixed and site.rng.random() < 0.16 and not any({*pair} & {*other} for other in chosen):
            chosen.append(pair)
    return chosen


def _lifted(site: Site, leads: tuple[Lead, ...]) -> set[int]:
    """Choose the leads that solder will not hold: one, or several."""
    chosen = {int(site.rng.integers(len(leads)))} if site.defect == "lifted" else set()
    return chosen | {i for i in range(len(leads)) if site.mixed and site.rng.random() < 0.22}


def with_pad(site: Site, footprint: Footprint, lead: Lead) -> None:
    """Draw the pad of a lead, with only paste on it if the part is missing."""
    reach = footprint.length + footprint.reach
    c, s = cos(radians(lead.angle)), sin(radians(lead.angle))
    mid = footprint.length * 0.35 + footprint.reach * 0.5 + footprint.length * 0.3
    x, y = lead.x + c * mid, lead.y + s * mid
    w, h = reach * 0.86, footprint.pad_width
    w, h = (w, h) if abs(c) > 0.5 else (h, w)
    pad(site.scene, x, y, w, h, site.style)
    if site.defect == "missing":
        paste(site.scene, x, y, w, h, site.rng)


def draw_lead(site: Site, footprint: Footprint, pose: Pose, top: float, side: float) -> None:
    """Draw one gull-wing lead: a shoulder at the body that falls to a foot."""
    w, length = footprint.width, footprint.length
    site.block(pose, length * 0.50, w, TIN, top + 2.0, Finish(0.9, 0.8, 0.5), (length * 0.22, side * 0.5))
    site.block(pose, length * 0.58, w, TIN, top, Finish(0.9, 0.85, 0.6), (length * 0.72, side))


def bridge(site: Site, footprint: Footprint, first: Lead, second: Lead) -> None:
    """Run solder over two neighbouring leads and record the box around it."""
    here = Pose((first.x + second.x) / 2, (first.y + second.y) / 2, first.angle)
    gap = float(np.hypot(first.x - second.x, first.y - second.y))
    reach = footprint.length + footprint.reach
    x = reach * site.uniform(0.52, 0.72)
    long, across = reach * site.uniform(0.50, 0.72), gap + footprint.pad_width * site.uniform(0.7, 1.0)
    blob = site.scene.rect(x, site.uniform(-0.4, 0.4), long, across, here, min(long, across) * 0.42)
    solder(site.scene, blob, site.uniform(3.4, 4.4), site.rng)
    a, b = x - long / 2 - 0.8, x + long / 2 + 0.8
    corners: Points = [(a, -across / 2), (b, -across / 2), (b, across / 2), (a, across / 2)]
    site.joints.append(Truth("bridge", site.scene.extent(corners, here)))


def _on(body: Pose, lead: Pose) -> Pose:
    """Return a lead's pose carried along by its body."""
    ((x, y),) = body.at([(lead.x, lead.y)])
    return Pose(float(x), float(y), lead.angle + body.angle)


def _moulding(site: Site, pose: Pose, w: float, h: float, lines: list[str], size: float) -> None:
    """Draw a black moulded body with its laser marking."""
    tone = site.uniform(0.85, 1.5)
    colour: Colour = (BLACK[0] * tone, BLACK[1] * tone, BLACK[2] * tone)
    site.block(pose, w, h, colour, 8.0, Finish(2.2, 0.16, 1.2))
    for i, line in enumerate(lines):
        site.write(pose, line, size, (0.46, 0.46, 0.45), y=(i - (len(lines) - 1) / 2) * size * 1.7, ink=0.8)


def _first_pin(site: Site, pose: Pose, x: float, y: float, radius: float, sign: Points) -> None:
    """Press the dot of pin 1 into a body; the truth covers the board's sign, too, unless the part is reversed."""
    dot = site.scene.disc(x, y, radius, pose=pose)
    site.scene.paint(dot, (0.46, 0.46, 0.45), 0.10)
    site.scene.shift_height(dot, -1.8)
    r = radius * 1.5
    box: Points = [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
    site.mark(box if site.defect == "reversed" else box + sign, pose)


def sot(site: Site, w: float, h: float, text: str) -> None:
    """A three-lead transistor: two leads below, one above."""
    length = h * 0.34
    leads = (*row(0, h / 2, w * 0.62, 2, 90), *row(0, -h / 2, 1, 1, -90))
    pose = site.placed(w, h * 1.4, (14, 32))
    site.silk_corners(w * 1.30, h * 1.02, 4)
    solder_leads(site, Footprint(leads, length, w * 0.14, w * 0.27, h * 0.18), pose)
    if site.defect == "missing":
        return
    _moulding(site, pose, w, h, [text], h * 0.30)
    if site.defect == "cracked":
        site.crack(pose, w * 0.96, h * 0.96, (0.82, 0.80, 0.75))


def soic(site: Site, w: float, h: float, lines: list[str]) -> None:
    """A small-outline IC with four leads above and four below; pin 1 at the lower left."""
    pitch, length = w / 4.1, h * 0.26
    leads = (*row(0, h / 2, pitch, 4, 90), *row(0, -h / 2, pitch, 4, -90))
    pose = site.placed(w * 0.8, h * 0.8, (9, 20))
    dot = site.scene.disc(-w * 0.64, h * 0.30, 2.7)
    print_silk(site.scene, dot, site.rng, worn=0.12)
    for side in (-1, 1):
        print_silk(
            site.scene, site.scene.line([(side * w * 0.55, -h * 0.42), (side * w * 0.55, h * 0.12)], 1.2), site.rng
        )
    solder_leads(site, Footprint(leads, length, pitch * 0.36, pitch * 0.58, h * 0.13), pose)
    if site.defect == "missing":
        return
    if site.defect == "reversed":
        pose = pose.turned(180)
    _moulding(site, pose, w, h, lines, h * 0.17)
    _first_pin(
        site, pose, -w * 0.38, h * 0.28, h * 0.075, [(-w * 0.64 - 3.5, h * 0.30 - 3.5), (-w * 0.64, h * 0.30 + 3.5)]
    )
    if site.defect == "cracked":
        site.crack(pose, w * 0.96, h * 0.96, (0.82, 0.80, 0.75))


def qfp(site: Site, side: float, count: int, lines: list[str]) -> None:
    """A quad flat package with `count` leads a side; pin 1 at the lower left."""
    pitch, length = side * 0.9 / count, side * 0.13
    leads = tuple(
        lead
        for angle in (0, 90, 180, 270)
        for lead in row(side / 2 * cos(radians(angle)), side / 2 * sin(radians(angle)), pitch, count, angle)
    )
    pose = site.placed(side * 0.34, side * 0.24, (5, 12))
    sign = (-side * 0.60, side * 0.60)
    tick: Points = [(sign[0] - 4.5, sign[1] + 4.5), (sign[0] + 4, sign[1] + 4.5), (sign[0] - 4.5, sign[1] - 4)]
    print_silk(site.scene, site.scene.polygon(tick), site.rng, worn=0.12)
    solder_leads(site, Footprint(leads, length, pitch * 0.40, pitch * 0.60, side * 0.055), pose)
    if site.defect == "missing":
        return
    if site.defect == "reversed":
        pose = pose.turned(90.0 * int(site.rng.integers(1, 4)))
    _moulding(site, pose, side, side, lines, side * 0.085)
    _first_pin(site, pose, -side * 0.38, side * 0.38, side * 0.05, [(sign[0] - 5, sign[1] + 5)])
    if site.defect == "cracked":
        site.crack(pose, side * 0.96, side * 0.96, (0.82, 0.80, 0.75))


def wire_socket(site: Site, w: float, h: float, count: int) -> None:
    """A wire-to-board socket: a pale housing with a cavity, pins in a row, leads soldered in front."""
    pitch = w * 0.78 / count
    leads = tuple(row(0, h / 2, pitch, count, 90))
    pose = site.placed(w * 0.55, h * 0.6, (6, 13))
    ears = [(-w * 0.53, -h * 0.18, w * 0.12, h * 0.44), (w * 0.53, -h * 0.18, w * 0.12, h * 0.44)]
    site.pads(ears)
    if site.defect != "missing":
        for x, y, a, b in ears:
            site.fillet(x, y, a, b, 2.0)
    solder_leads(site, Footprint(leads, h * 0.26, pitch * 0.34, pitch * 0.60, h * 0.12), pose)
    if site.defect == "missing":
        return
    tone = site.uniform(0.92, 1.06)
    shell: Colour = (0.80 * tone, 0.77 * tone, 0.68 * tone)
    site.block(pose, w * 1.10, h * 0.30, TIN, 4.0, Finish(1.2, 0.8), (0.0, -h * 0.18))
    site.block(pose, w, h, shell, 10.0, Finish(1.6, 0.10, 1.5))
    floor: Colour = (shell[0] * 0.45, shell[1] * 0.43, shell[2] * 0.40)
    cavity = site.scene.rect(0, -h * 0.06, w * 0.88, h * 0.60, pose, 1.2)
    site.scene.paint(cavity, floor, 0.05)
    site.scene.raise_(cavity, 4.5, 0.5, base=6.5)
    for i in range(count):
        x = (i - (count - 1) / 2) * pitch
        pin = site.scene.rect(x, -h * 0.04, pitch * 0.26, h * 0.34, pose)
        site.scene.paint(pin, GOLD, 0.8)
        site.scene.raise_(pin, 7.5, 0.9)
    for x in (-w * 0.30, w * 0.30):
        site.block(pose, w * 0.16, h * 0.12, floor, 7.0, Finish(0.6, 0.05, 0.5), (x, h * 0.42))
    if site.defect == "cracked":
        site.crack(pose, w * 0.98, h * 0.98, (0.14, 0.13, 0.12))
