"""A place on a board: all that a part needs to draw itself and to record its truths."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from apps.demo.canvas import Canvas, Colour, Points, Pose
from apps.demo.pcb import TIN, Style, pad, paste, print_silk, solder


@dataclass(frozen=True, slots=True)
class Truth:
    """A thing that a detector should find: `xyxy` are pixels of the image, origin top left."""

    label: str
    xyxy: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Finish:
    """How a body's surface looks: the width of its bevel, its gloss, and the radius of its corners."""

    bevel: float = 1.0
    gloss: float = 0.12
    corner: float = 0.8


@dataclass(slots=True)
class Site:
    """A scene with its random generator, its defect and the truths recorded so far."""

    scene: Canvas
    style: Style
    rng: np.random.Generator
    defect: str | None
    refdes: str
    several: bool = False
    joints: list[Truth] = field(default_factory=list)
    marks: list[Truth] = field(default_factory=list)

    @property
    def mixed(self) -> bool:
        """Whether bridged and lifted leads occur together, several of each: in training data, never on a product."""
        return self.several and self.defect in {"bridged", "lifted"}

    def uniform(self, low: float, high: float) -> float:
        """Return a number between the two."""
        return float(self.rng.uniform(low, high))

    def either(self) -> int:
        """Return 1 or -1."""
        return 1 if self.rng.random() < 0.5 else -1

    def placed(self, length: float, width: float, skew: tuple[float, float] = (15.0, 38.0)) -> Pose:
        """Return the pose in which the machine placed a part of that size: nearly right, or with the defect."""
        x, y, angle = self.uniform(-0.9, 0.9), self.uniform(-0.9, 0.9), self.uniform(-2.0, 2.0)
        if self.defect == "shifted":
            if self.rng.random() < 0.5:
                x += self.either() * length * self.uniform(0.20, 0.34)
                y += self.uniform(-0.1, 0.1) * width
            else:
                y += self.either() * width * self.uniform(0.36, 0.60)
                x += self.uniform(-0.1, 0.1) * length
            angle += self.uniform(-5, 5)
        elif self.defect == "rotated":
            angle += self.either() * self.uniform(*skew)
        return Pose(x, y, angle)

    def pads(self, places: list[tuple[float, float, float, float]]) -> None:
        """Draw pads (x, y, w, h), with only solder paste on them if the part is missing."""
        for x, y, w, h in places:
            pad(self.scene, x, y, w, h, self.style)
        if self.defect == "missing":
            bare = self.rng.random() < 0.25  # no paste was printed, so nothing held the part
            for x, y, w, h in places:
                if not bare:
                    paste(self.scene, x, y, w, h, self.rng)

    def fillet(self, x: float, y: float, w: float, h: float, top: float = 3.6) -> None:
        """Wet a pad where a terminal sits on it."""
        corner = min(w, h) * self.uniform(0.25, 0.42)
        mask = self.scene.rect(x, y, w * self.uniform(0.90, 1.0), h * self.uniform(0.88, 1.0), corner=corner)
        solder(self.scene, mask, top * self.uniform(0.85, 1.15), self.rng)

    def block(self, pose: Pose, w: float, h: float, colour: Colour, top: float, finish: Finish = Finish(),
              at: tuple[float, float] = (0.0, 0.0)) -> None:  # fmt: skip
        """Draw a box-shaped body with rounded edges, its centre `at` a point of the part."""
        mask = self.scene.rect(*at, w, h, pose, finish.corner)
        self.scene.paint(mask, colour, finish.gloss)
        self.scene.raise_(mask, top, finish.bevel)

    def metal(self, pose: Pose, x: float, y: float, w: float, h: float, top: float, bevel: float = 1.2) -> None:
        """Draw a tinned terminal."""
        tone = self.uniform(0.92, 1.05)
        self.block(pose, w, h, (TIN[0] * tone, TIN[1] * tone, TIN[2] * tone), top, Finish(bevel, 0.85, 0.9), (x, y))

    def write(self, pose: Pose, words: str, size: float, colour: Colour, x: float = 0.0, y: float = 0.0,
              ink: float = 0.9) -> None:  # fmt: skip
        """Mark a body with laser or ink."""
        mask = self.scene.text(words, x, y, size, pose)
        self.scene.paint(mask, colour, 0.05, ink * self.uniform(0.85, 1.0))

    def silk_corners(self, w: float, h: float, arm: float) -> None:
        """Print brackets at the corners of a part's courtyard."""
        a, b = w / 2, h / 2
        for sx in (-1, 1):
            for sy in (-1, 1):
                points: Points = [(sx * (a - arm), sy * b), (sx * a, sy * b), (sx * a, sy * (b - arm))]
                print_silk(self.scene, self.scene.line(points, 1.2), self.rng)

    def silk_name(self, x: float, y: float, size: float = 8.5, angle: float = 0.0) -> None:
        """Print the reference designator."""
        print_silk(self.scene, self.scene.text(self.refdes, 0, 0, size, Pose(x, y, angle), weight=0.15), self.rng)

    def silk_bar(self, x: float, y: float, w: float, h: float) -> None:
        """Print a solid bar, the board's sign for a cathode, a plus or pin 1."""
        print_silk(self.scene, self.scene.rect(x, y, w, h, corner=0.6), self.rng, worn=0.12)

    def mark(self, box: Points, pose: Pose) -> None:
        """Record the position of a part's polarity mark, and whether it is on the right side."""
        self.marks.append(Truth("reversed" if self.defect == "reversed" else "mark", self.scene.extent(box, pose)))

    def crack(self, pose: Pose, w: float, h: float, inside: Colour) -> None:
        """Break a body of size w x h: a jagged crack across it, or a chipped corner that shows its inside."""
        rng, scene = self.rng, self.scene
        kind = rng.random()
        if kind < 0.80:
            across = w >= h * 0.8
            start = self.uniform(-0.28, 0.28) * (w if across else h)
            lean = self.uniform(-0.3, 0.3) * min(w, h)
            steps = int(rng.integers(5, 8))
            points: Points = []
            for step in range(steps + 1):
                t = step / steps
                along = start + lean * (t - 0.5) + self.uniform(-0.07, 0.07) * min(w, h)
                over = (t - 0.5) * (h if across else w) * 1.02
                points.append((along, over) if across else (over, along))
            width = self.uniform(0.038, 0.050) * scene.size  # as clear in the picture of every type
            edge = scene.line(points, width * 1.9, pose)  # the edges have crumbled and show the inside
            scene.paint(edge, inside, 0.05, self.uniform(0.75, 1.0))
            gap = scene.line(points, width, pose)
            scene.paint(gap, (0.012, 0.010, 0.010), 0.0)
            scene.shift_height(gap, -2.2)
            if rng.random() < 0.5:
                middle = points[steps // 2]
                tip = (middle[0] + self.uniform(-0.3, 0.3) * w, middle[1] + self.uniform(-0.2, 0.2) * h)
                branch = scene.line([middle, tip], width * 0.7, pose)
                scene.paint(branch, (0.015, 0.012, 0.012), 0.0)
                scene.shift_height(branch, -1.4)
        if kind > 0.62:
            sx, sy = self.either(), self.either()
            a, b = self.uniform(0.32, 0.48) * w, self.uniform(0.40, 0.60) * h
            x0, y0 = sx * w / 2 * 1.03, sy * h / 2 * 1.03
            chip: Points = [(x0, y0), (x0 - sx * a, y0), (x0 - sx * a * 0.62, y0 - sy * b * self.uniform(0.25, 0.5)),
                            (x0 - sx * a * 0.35, y0 - sy * b * self.uniform(0.5, 0.8)), (x0, y0 - sy * b)]  # fmt: skip
            mask = scene.polygon(chip, pose)
            shade = self.uniform(0.75, 1.1)
            scene.paint(mask, (inside[0] * shade, inside[1] * shade, inside[2] * shade), 0.02)
            scene.shift_height(mask, -2.4)
            scene.roughen(mask, rng, 0.25, 1)
