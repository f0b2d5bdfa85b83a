"""More defects for training: strokes drawn into tested pictures, and named by what they join or split.

Many defects of the data set were drawn by hand, and its pictures have two levels: dark is copper, light is base. So
what a stroke is follows from what it touches. A dark stroke that touches nothing is copper, one that touches one part
of the copper is a spur, and one that joins two, or splits the base, is a short; a light stroke is a pin-hole, a
mousebite or an open. A stroke of which this is not sure, as one that splits off a crumb, is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from apps.deeppcb.data import LABELS, DataMissing, Defect, Pair

Grey = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Points = NDArray[np.float64]
Corners = tuple[int, int, int, int]

BEFORE, AFTER = 10, 9
"""Pixels from a stroke to the left and top, and to the right and bottom, of its box, as nearly all pin-holes and
isolated pieces of copper of the training list have them."""
_BEYOND = 3
"""A stroke that touches a part goes on within it, where it changes nothing, by so many pixels at most. In the training
list, a side of the boxes of such defects is 0 to 4 pixels farther away, between the quartiles."""
_APART = 5
"""The least pixels between what two defects change; their boxes may overlap."""
_AROUND = 16
"""How far around a stroke it is looked what the stroke joins."""
_LEAST, _MOST = 14, 900
"""The least and the most pixels that a stroke changes."""
_PART = 30
"""Parts of fewer pixels are ragged borders: a stroke joins none of them, and splits none off."""
_CRUMB = 120
"""A stroke that splits off a part of fewer pixels has no sure name: some people call it an open, others a mousebite. A
part that goes on outside of what is looked at may be larger than it seems, and counts."""
_LONGEST = 55
"""The most pixels from border to border that a stroke crosses."""
_TRIES = 12
"""How often, for each defect wanted, a stroke is tried."""
_ALONE, _BESIDE, _ACROSS = range(3)
"""How a stroke lies: it touches nothing, touches one part, or joins or splits parts."""
_TRIED = (_ALONE, _BESIDE, _ACROSS, _BESIDE, _ACROSS)
"""In this order ways are tried: strokes across are often refused."""
_DARK, _LIGHT = ("copper", "spur", "short"), ("pin-hole", "mousebite", "open")
"""What dark and light strokes are, by how they lie."""
_THICK = (2, 2, 2, 3, 3, 4, 4, 5, 6, 8)
_NEAR, _WIDE = np.ones((3, 3), np.uint8), np.ones((5, 5), np.uint8)


def drawn(pair: Pair, wanted: int, chance: np.random.Generator) -> tuple[Grey, tuple[Defect, ...]]:
    """Return the tested picture of a pair, (H, W) uint8, with up to `wanted` more defects, and all its defects.

    Raises DataMissing if a picture of the pair cannot be read.
    """
    picture, good = _read(pair.tested), _read(pair.template) >= 128
    taken = np.zeros(picture.shape, bool)
    for defect in pair.defects:
        x1, y1, x2, y2 = defect.xyxy
        taken[y1:y2, x1:x2] = ((picture >= 128) != good)[y1:y2, x1:x2]
    taken = cv2.dilate(taken.astype(np.uint8), np.ones((2 * _APART + 1,) * 2, np.uint8)) > 0
    more: list[Defect] = []
    for stroke in _strokes(picture >= 128, _TRIES * wanted, chance):
        changed, to_light, way = stroke
        x, y, width, height = cv2.boundingRect(changed.astype(np.uint8))
        inside = x > 0 and y > 0 and x + width < picture.shape[1] and y + height < picture.shape[0]
        if not inside or (taken & changed).any() or 2 * (changed & (good != to_light)).sum() < changed.sum():
            continue  # at the border, at another defect, or hardly a difference to the template
        if not _lies(picture >= 128, changed, to_light, way):
            continue
        picture[changed] = 255 * to_light
        _take(taken, (x, y, x + width, y + height))
        beyond = chance.integers(0, _BEYOND + 1, 4) if way != _ALONE else np.zeros(4, int)
        sides = np.array((x - BEFORE, y - BEFORE, x + width + AFTER, y + height + AFTER))
        x1, y1, x2, y2 = np.clip(sides + beyond * (-1, -1, 1, 1), 0, max(picture.shape)).tolist()
        more.append(Defect(LABELS.index((_LIGHT if to_light else _DARK)[way]), (x1, y1, x2, y2)))
        if len(more) == wanted:
            break
    return picture, (*pair.defects, *more)


def _read(path: Path) -> Grey:
    picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if picture is None:
        raise DataMissing(f"'{path}' cannot be read as a picture; get the data set again")
    return np.asarray(picture, np.uint8)


def _take(taken: Mask, box: Corners) -> None:
    x1, y1, x2, y2 = box
    taken[max(0, y1 - _APART) : max(0, y2 + _APART), max(0, x1 - _APART) : max(0, x2 + _APART)] = True


def _strokes(light: Mask, tries: int, chance: np.random.Generator) -> Iterator[tuple[Mask, bool, int]]:
    """Yield strokes to try on a picture: what each changes (H, W), whether to light, and how it should lie."""
    free = {to_light: (light != to_light).astype(np.uint8) for to_light in (False, True)}
    away = {to_light: cv2.distanceTransform(mask, cv2.DIST_L2, 5) for to_light, mask in free.items()}
    for attempt in range(tries):
        way, to_light = _TRIED[attempt % len(_TRIED)], bool(chance.integers(2))
        distance = away[to_light]
        if way == _ALONE:
            places = distance > chance.uniform(5, 14)
        elif way == _BESIDE:
            places = (distance > 0) & (distance <= 2)
        else:
            places = (distance >= 2) & (distance <= chance.uniform(4, 22))
        rows, columns = places.nonzero()
        if not len(rows):
            continue
        which = int(chance.integers(len(rows)))
        start = np.array((columns[which], rows[which]), float)
        points = _across(free[to_light], start, chance) if way == _ACROSS else _wandering(start, chance)
        if points is not None:
            changed = _painted(light.shape, points, chance) & (light != to_light)
            if _LEAST <= int(changed.sum()) <= _MOST:
                yield changed, to_light, way


def _across(free: Grey, start: Points, chance: np.random.Generator) -> Points | None:
    """Return points of a line through a place from border to border of what is free, or None if all are too long.

    Of some directions the shortest is likely, as when people draw, but not sure.
    """
    best, shortest = None, float(_LONGEST)
    for angle in chance.uniform(0, np.pi) + np.arange(6) * np.pi / 6:
        step = np.array((np.cos(angle), np.sin(angle)))
        ends = [_border(free, start, one) for one in (step, -step)]
        if ends[0] is None or ends[1] is None:
            continue
        length = float(np.linalg.norm(ends[0] - ends[1])) * chance.uniform(1, 1.5)
        if length < shortest:
            best, shortest = (ends[0], ends[1]), length
    if best is None:
        return None
    first, last = best
    middle = (first + last) / 2 + chance.normal(0, 0.1 * float(np.linalg.norm(last - first)) + 0.5, 2)
    return np.stack((first, middle, last))


def _border(free: Grey, start: Points, step: Points) -> Points | None:
    """Return the first place from a start that is not free, and one pixel on; None outside of the picture."""
    for pixels in range(_LONGEST):
        x, y = np.rint(start + pixels * step).astype(int)
        if not (0 <= x < free.shape[1] and 0 <= y < free.shape[0]):
            return None
        if not free[y, x]:
            return np.asarray(start + (pixels + 1) * step)
    return None


def _wandering(start: Points, chance: np.random.Generator) -> Points:
    """Return points of a stroke from a place in any direction, or of a scribble around it."""
    count = int(chance.integers(2, 5))
    if not int(chance.integers(4)):
        return np.asarray(start + chance.normal(0, chance.uniform(2, 6), (2 * count, 2)))
    turn = chance.uniform(0, 2 * np.pi) + np.cumsum(chance.normal(0, 0.6, count))
    steps = chance.uniform(1, 9, count)[:, None] * np.stack((np.cos(turn), np.sin(turn)), axis=1)
    return np.concatenate((start[None], start + np.cumsum(steps, axis=0)))


def _painted(shape: tuple[int, ...], points: Points, chance: np.random.Generator) -> Mask:
    """Return a mask of a line through points, with a ragged border."""
    mask = np.zeros(shape, np.uint8)
    cv2.polylines(mask, [np.rint(points).astype(np.int32)[:, None]], False, 255, int(chance.choice(_THICK)))
    x, y, width, height = cv2.boundingRect(mask)
    part = mask[max(0, y - 4) : y + height + 4, max(0, x - 4) : x + width + 4]
    noise = cv2.GaussianBlur(chance.normal(0, 1, part.shape).astype(np.float32), (0, 0), 1.0)
    smooth = cv2.GaussianBlur(part.astype(np.float32), (0, 0), 0.7)
    part[:] = smooth + float(chance.uniform(0, 120)) * noise > 110
    return mask > 0


def _lies(light: Mask, changed: Mask, to_light: bool, way: int) -> bool:
    """Tell whether what a stroke changes surely lies as it should."""
    x, y, width, height = cv2.boundingRect(changed.astype(np.uint8))
    window = (
        slice(max(0, y - _AROUND), y + height + _AROUND),
        slice(max(0, x - _AROUND), x + width + _AROUND),
    )
    inside, same = changed[window].astype(np.uint8), (light[window] == to_light).astype(np.uint8)
    pieces, bodies = cv2.connectedComponents(inside)
    if way == _ALONE:
        return pieces <= 4 and not (cv2.dilate(inside, _WIDE) & same).any()
    if pieces > 3:
        return False
    free = 1 - same
    rest = free & (1 - inside)
    if way == _ACROSS:
        splits = len(_parts(rest, 4, _CRUMB)) > len(_parts(free, 4, _CRUMB))
        parts = _parts(same)
        reached = (cv2.dilate((bodies == piece).astype(np.uint8), _NEAR) for piece in range(1, pieces))
        return any(splits or sum(bool((part & reach).any()) for part in parts) > 1 for reach in reached)
    touching = cv2.dilate(inside, _NEAR) & same
    once = cv2.connectedComponents(cv2.dilate(touching, _NEAR))[0] == 2  # twice may close a loop
    splits = len(_parts(rest, 4)) > len(_parts(free, 4))
    return once and not splits and sum(bool((part & touching).any()) for part in _parts(same)) == 1


def _parts(mask: Grey, connected: int = 8, least: int = _PART) -> list[Grey]:
    """Return masks of the connected parts of a mask that count.

    These have at least `least` pixels, or at least _PART and go on outside of the mask.
    """
    count, places, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=connected)
    found = []
    for part, (x, y, width, height, size) in enumerate(stats[1:count].tolist(), start=1):
        outside = x == 0 or y == 0 or x + width == mask.shape[1] or y + height == mask.shape[0]
        if size >= (_PART if outside else least):
            found.append((places == part).astype(np.uint8))
    return found
