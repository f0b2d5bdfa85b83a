"""The electrolytic capacitor: an aluminium can on a plastic base."""

from __future__ import annotations

from math import cos, radians, sin

import numpy as np

from apps.demo.canvas import Points, Pose
from apps.demo.pcb import print_silk
from apps.demo.site import Site


def electrolytic(site: Site, radius: float, lines: list[str]) -> None:
    """An aluminium can on a plastic base; the black segment on its top, to the left, is the minus side."""
    scene, base = site.scene, radius * 2.12
    x, w, h = radius * 1.08, radius * 0.74, radius * 0.42
    site.pads([(-x, 0, w, h), (x, 0, w, h)])
    site.silk_bar(-radius * 1.66, 0, 3.0, radius * 1.1)
    plus = scene.line([(radius * 1.72 - 3, 0), (radius * 1.72 + 3, 0)], 1.3) | scene.line(
        [(radius * 1.72, -3), (radius * 1.72, 3)], 1.3
    )
    print_silk(scene, plus, site.rng)
    if site.defect == "missing":
        ring = scene.line([(radius * cos(t), radius * sin(t)) for t in np.linspace(0, 2 * np.pi, 36)], 1.2, closed=True)
        print_silk(scene, ring, site.rng)
        return
    for side in (-1, 1):
        site.fillet(side * (x + w * 0.12), 0, w * 0.7, h * 0.9, 2.0)
    pose = site.placed(radius * 1.3, radius * 1.0, (12, 30))
    if site.defect == "reversed":
        pose = pose.turned(180)
    for side in (-1, 1):
        site.metal(pose, side * radius * 1.15, 0, radius * 0.34, radius * 0.26, 2.6)
    b, cut = base / 2, radius * 0.42
    outline: Points = [(-b, -b), (b - cut, -b), (b, -b + cut), (b, b - cut), (b - cut, b), (-b, b)]
    plinth = scene.polygon(outline, pose)
    scene.paint(plinth, (0.045, 0.045, 0.048), 0.12)
    scene.raise_(plinth, 5.0, 1.2)
    tone = site.uniform(0.88, 1.04)
    can = scene.disc(0, 0, radius * 0.98, pose=pose)
    scene.paint(can, (0.70 * tone, 0.70 * tone, 0.71 * tone), 0.48)
    scene.raise_(can, 15.0, 3.4)
    segment: Points = [(radius * 0.93 * cos(radians(t)), radius * 0.93 * sin(radians(t))) for t in range(122, 239, 4)]
    scene.paint(scene.polygon(segment, pose), (0.030, 0.030, 0.033), 0.12)
    for i, line in enumerate(lines):
        site.write(
            pose,
            line,
            radius * 0.29,
            (0.05, 0.05, 0.06),
            x=radius * 0.20,
            y=(i - 0.5 * (len(lines) - 1)) * radius * 0.46,
        )
    if site.defect == "damaged":
        _dent(site, pose, radius)
    far = -radius * 1.80 if site.defect != "reversed" else -radius
    site.mark(
        [(far, -radius * 0.8), (-radius * 0.42, -radius * 0.8), (-radius * 0.42, radius * 0.8), (far, radius * 0.8)],
        pose,
    )


def _dent(site: Site, pose: Pose, radius: float) -> None:
    """Burst a can's vent or press its rim in."""
    scene, rng = site.scene, site.rng
    if rng.random() < 0.5:  # the vent has opened: three torn lines with a dark residue between them
        middle = (site.uniform(-0.1, 0.25) * radius, site.uniform(-0.2, 0.2) * radius)
        start = site.uniform(0, 120)
        stain = scene.disc(*middle, radius * site.uniform(0.40, 0.58), radius * site.uniform(0.36, 0.52), pose)
        scene.paint(stain, (0.36, 0.16, 0.04), 0.05, 0.9)
        for turn in (start, start + 120, start + 240):
            tip = (middle[0] + radius * 0.66 * cos(radians(turn)), middle[1] + radius * 0.66 * sin(radians(turn)))
            tear = scene.line([middle, tip], site.uniform(1.4, 2.2), pose)
            scene.paint(tear, (0.03, 0.025, 0.02), 0.0)
            scene.shift_height(tear, 2.0)
        return
    turn = radians(site.uniform(-100, 100))
    x, y = radius * 0.86 * cos(turn), radius * 0.86 * sin(turn)
    hollow = scene.disc(x, y, radius * site.uniform(0.48, 0.62), radius * site.uniform(0.44, 0.56), pose)
    hollow &= scene.disc(0, 0, radius, pose=pose)
    scene.paint(hollow, (0.20, 0.19, 0.19), 0.20, 0.9)
    scene.raise_(hollow, 3.0, radius * 0.4, base=13.0)
