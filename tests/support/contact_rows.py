"""Drawn parts with rows and grids of contacts, good and with a contact that is missing, bent or too much.

Whatever repeats itself fits its reference after several motions.
"""

from collections import namedtuple

import cv2
import numpy as np

AROUND = 80
"""The pixels around a part that are drawn, too."""
LIMIT = 0.9
"""The least share of the reference that a picture shows."""


class Part(namedtuple("Part", "rows contacts pitch wide long gap left right top below body ground level")):
    """Rows of contacts, in pixels, with the margins that the reference shows around them, and grey levels."""

    @property
    def width(self):
        return self.left + round((self.contacts - 1) * self.pitch) + self.wide + self.right

    @property
    def height(self):
        return 2 * self.top + self.rows * self.long + (self.rows - 1) * self.gap + self.below

    def at(self, row, contact):
        return self.left + round(contact * self.pitch), self.top + row * (self.long + self.gap)


Case = namedtuple("Case", "part reference good bad defect shows_all shows_defect turned")
"""A reference, a good and a bad picture of one pose, and whether they show the whole row, and what is bad."""


def part_of(chance, largest=520):
    """Return a part with one row, two rows or a grid, a pitch of 4 to 40 pixels, and any margins."""
    while True:
        kind = int(chance.integers(3))
        pitch = max(4.0, float(np.exp(chance.uniform(np.log(4), np.log(40)))))
        pitch = round(pitch) if chance.integers(2) else pitch
        wide = max(3, round(pitch * chance.uniform(0.3, 0.65)))
        long = wide if kind == 2 else int(chance.integers(max(4, wide), 3 * wide + 9))
        rows = int(chance.integers(3, 10)) if kind == 2 else kind + 1
        gap = (0, 28, max(3, round(pitch) - long))[kind]
        left, right = (int(value) for value in chance.integers(2, max(4, round(pitch * 1.3)), 2))
        right = left if chance.integers(2) else right
        top = left if kind == 2 else int(chance.integers(4, 20))
        ground, level = int(chance.integers(30, 80)), int(chance.integers(180, 230))
        if chance.integers(4) == 0:
            ground, level = level, ground
        body = ("none", "none", "plain", "plain", "long")[int(chance.integers(5))]
        below = 24 if kind == 0 else 0
        contacts = int(chance.integers(4, 33))
        part = Part(rows, contacts, pitch, wide, long, gap, left, right, top, below, body, ground, level)
        if wide <= pitch - 2 and 48 <= part.width <= largest and 24 <= part.height <= largest:
            return part


def drawn(part, without=frozenset(), further=()):
    """Return a part (height + 2 AROUND, width + 2 AROUND, 3) without some contacts, and with further ones."""
    picture = np.full((part.height + 2 * AROUND, part.width + 2 * AROUND, 3), part.ground, np.uint8)
    if part.body != "none":
        grey = part.ground + (30 if part.ground < 128 else -30)
        low = part.top + (part.long - 2 if part.rows < 3 else -3)
        high = part.height - part.top - (part.long - 2 if part.rows == 2 else -3 if part.rows > 2 else 0)
        x1, x2 = (
            (part.left - 2, part.width - part.right + 2) if part.body == "plain" else (-AROUND, part.width + AROUND)
        )
        picture[AROUND + low : AROUND + high, AROUND + x1 : AROUND + x2] = grey
    every = {(row, contact) for row in range(part.rows) for contact in range(part.contacts)}
    for x, y in [*(part.at(*place) for place in sorted(every - without)), *further]:
        picture[AROUND + y : AROUND + y + part.long, AROUND + x : AROUND + x + part.wide] = part.level
    return picture


def case_of(seed, largest=520):
    """Return a case with shifts up to the limit, small turns and scales, noise, and another light."""
    chance = np.random.default_rng(seed)
    part = part_of(chance, largest)
    shift = _shift(chance, part)
    turned = chance.integers(4) == 0
    degrees, scale = (chance.uniform(-1.5, 1.5), chance.uniform(0.985, 1.015)) if turned else (0.0, 1.0)
    middle = (part.width / 2 + AROUND - 0.5, part.height / 2 + AROUND - 0.5)
    motion = cv2.getRotationMatrix2D(middle, float(degrees), float(scale))
    motion[:, 2] += shift
    light, dark, noise = chance.uniform(0.93, 1.07), chance.uniform(-8, 8), chance.uniform(0.5, 4)

    def seen(picture):
        size = (picture.shape[1], picture.shape[0])
        moved = cv2.warpAffine(picture, motion, size, borderMode=cv2.BORDER_REPLICATE)
        cut = moved[AROUND:-AROUND, AROUND:-AROUND] * light + dark
        return np.clip(cut + chance.normal(0, noise, cut.shape), 0, 255).round().astype(np.uint8)

    defect, without, further, changed = _defect(chance, part)
    reference = drawn(part)[AROUND:-AROUND, AROUND:-AROUND]
    reference = np.clip(reference + chance.normal(0, 1.5, reference.shape), 0, 255).astype(np.uint8)
    ends = [part.at(0, 0), part.at(part.rows - 1, part.contacts - 1)]
    return Case(
        part, reference, seen(drawn(part)), seen(drawn(part, without, further)), defect,
        shows_all=all(_is_shown(part, motion, place) for place in ends),
        shows_defect=all(_is_shown(part, motion, place) for place in changed),
        turned=bool(turned),
    )  # fmt: skip


def _shift(chance, part):
    """Return a shift after which enough of the reference is seen; often one that shows the whole row."""
    right = int(chance.integers(-part.width // 10, part.width // 10 + 1))
    if chance.integers(3):
        right = int(chance.integers(-part.left, part.right + 1))
    down = int(chance.integers(-2, 3))
    while (1 - abs(right) / part.width) * (1 - abs(down) / part.height) < LIMIT:
        right, down = int(right * 0.8), int(down * 0.8)
    return right, down


def _defect(chance, part):
    """Return a defect's name, the contacts that it takes away and adds, and where it changes the part."""
    row, last = int(chance.integers(part.rows)), part.contacts - 1
    contact = int(chance.choice([0, last])) if chance.integers(4) else int(chance.integers(part.contacts))
    x, y = part.at(row, contact)
    name = str(chance.choice(["missing", "bent", "added"], p=[0.6, 0.25, 0.15]))
    if name == "missing":
        rows = range(part.rows) if chance.integers(3) == 0 else [row]
        without = frozenset((other, contact) for other in rows)
        return name, without, (), tuple(part.at(*place) for place in without)
    if name == "bent":
        by = max(4, round(part.pitch * chance.uniform(0.35, 0.6))) * int(chance.choice([-1, 1]))
        return name, frozenset({(row, contact)}), ((x + by, y),), ((x, y), (x + by, y))
    if part.rows > 2 and 0 < contact < last:  # there is no room for a further one
        contact, (x, y) = last, part.at(row, last)
    away = round(part.pitch) * (-1 if contact == 0 else 1)
    place = (x + away, y) if contact in (0, last) else (x, y + part.long + 4)
    return name, frozenset(), (place,), (place,)


def _is_shown(part, motion, place):
    """Tell whether a contact at a place lies in the reference and, after a motion, in the picture."""
    x, y = place
    corners = np.array([(x, y), (x + part.wide - 1, y + part.long - 1), (x, y + part.long - 1), (x + part.wide - 1, y)])
    there = (corners + AROUND) @ motion[:, :2].T + motion[:, 2] - AROUND
    most = np.array([part.width - 1, part.height - 1])
    return bool(all(((points >= 0) & (points <= most)).all() for points in (corners, there)))
