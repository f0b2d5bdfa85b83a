"""More defects for training: strokes drawn into tested pictures, and named by what they join or split.

Many defects of the data set were drawn by hand, and its pictures have two levels: dark is copper, light is base. So
what a stroke is follows from what it touches. A dark stroke that touches nothing is copper, one that touches one part
of the copper is a spur, and one that joins two, or splits the base, is a short; a light stroke is a pin-hole, a
mousebite or an open. To split off a crumb does not count. This rule names 98 % of the annotated defects of the training
list as the data set does. A stroke of which it is not sure is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from apps.data_set import DataMissing
from apps.deeppcb.data import LABELS, Defect, Pair

Grey = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Points = NDArray[np.float64]
Corners = tuple[int, int, int, int]

BEFORE, AFTER = 10, 9
"""Pixels from a stroke to the left and top sides of its box, and to the right and bottom sides. Nearly all pin-holes
and isolated pieces of copper of the training list have these distances."""
_BEYOND = 3
"""Most pixels by which a stroke that touches a part continues inside it, where it changes nothing. In the training
list, a side of the boxes of such defects is 0 to 4 pixels farther away, between the quartiles."""
_APART = 5
"""Least distance in pixels between the pixels that two defects change; their boxes may overlap."""
_AROUND = 16
"""Pixels around a stroke in which parts that it joins are searched."""
_LEAST, _MOST = 14, 1200
"""Least and most pixels that a stroke changes."""
_PART = 30
"""Smaller parts, in pixels, are ragged borders, which a stroke does not join. A part that continues outside the area
searched may be larger than it seems, and is a part from this size on."""
_CRUMBS, _CRUMB, _SPLIT = 6, 45, 60
"""A stroke that splits off at least _CRUMBS and fewer than _CRUMB pixels is a mousebite or a spur; one that splits off
_SPLIT or more is an open or a short. Between these sizes the data set has both."""
_LONGEST = 90
"""Most pixels that a stroke crosses from border to border."""
_BOW = (8, 40)
"""Least distance in pixels between the ends of a bow, and most distance to the side and up or down."""
_TRIES = 12
"""Strokes that are tried for each wanted defect."""
_DARK, _LIGHT = ("copper", "spur", "short"), ("pin-hole", "mousebite", "open")
"""Labels of dark and of light strokes: of those that touch nothing, touch one part, and join or split parts."""
_THICK = (2, 2, 2, 3, 3, 4, 4, 5, 6, 8, 10, 13)
_THIN = (2, 2, 2, 3, 3, 4)
_NEAR, _WIDE = np.ones((3, 3), np.uint8), np.ones((5, 5), np.uint8)


@dataclass(frozen=True, slots=True)
class _Stroke:
    """A line through points (n, 2), x and y in pixels, of some thickness in pixels; what it encloses may be filled."""

    points: Points
    thick: int
    filled: bool = False


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
    for changed, to_light in _strokes(picture >= 128, _TRIES * wanted, chance):
        x, y, width, height = cv2.boundingRect(changed.astype(np.uint8))
        inside = x > 0 and y > 0 and x + width < picture.shape[1] and y + height < picture.shape[0]
        if not inside or (taken & changed).any() or 2 * (changed & (good != to_light)).sum() < changed.sum():
            continue  # at the border, at another defect, or hardly a difference to the template
        label = name(picture >= 128, changed, to_light)
        if label is None:
            continue
        picture[changed] = 255 * to_light
        _take(taken, (x, y, x + width, y + height))
        beyond = chance.integers(0, _BEYOND + 1, 4) if label not in (_DARK[0], _LIGHT[0]) else np.zeros(4, int)
        sides = np.array((x - BEFORE, y - BEFORE, x + width + AFTER, y + height + AFTER))
        x1, y1, x2, y2 = np.clip(sides + beyond * (-1, -1, 1, 1), 0, max(picture.shape)).tolist()
        more.append(Defect(LABELS.index(label), (x1, y1, x2, y2)))
        if len(more) == wanted:
            break
    return picture, (*pair.defects, *more)


def _read(path: Path) -> Grey:
    picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if picture is None:
        raise DataMissing(f"'{path}' is not a readable picture; download the data set again")
    return np.asarray(picture, np.uint8)


def _take(taken: Mask, box: Corners) -> None:
    x1, y1, x2, y2 = box
    taken[max(0, y1 - _APART) : max(0, y2 + _APART), max(0, x1 - _APART) : max(0, x2 + _APART)] = True


def _strokes(light: Mask, tries: int, chance: np.random.Generator) -> Iterator[tuple[Mask, bool]]:
    """Yield strokes to try on a picture: what each changes (H, W), and whether to light."""
    free = {to_light: (light != to_light).astype(np.uint8) for to_light in (False, True)}
    away = {to_light: cv2.distanceTransform(mask, cv2.DIST_L2, 5) for to_light, mask in free.items()}
    for attempt in range(tries):
        shape, to_light = _SHAPES[attempt % len(_SHAPES)], bool(chance.integers(2))
        stroke = shape(free[to_light], away[to_light], chance)
        if stroke is not None:
            changed = _painted(light.shape, stroke, chance) & (light != to_light)
            if _LEAST <= int(changed.sum()) <= _MOST:
                yield changed, to_light


def _inside(free: Grey, away: Points, chance: np.random.Generator) -> _Stroke | None:
    """Return a stroke that begins somewhere in what is free, away from its border."""
    start = _any(away > chance.uniform(2, 14), chance)
    if start is None:
        return None
    return _Stroke(_wandering(start, chance.uniform(0.8, 2), chance), int(chance.choice(_THICK)))


def _at_border(free: Grey, away: Points, chance: np.random.Generator) -> _Stroke | None:
    """Return a stroke that begins at the border of what is free."""
    start = _any((away > 0) & (away <= 2), chance)
    if start is None:
        return None
    return _Stroke(_wandering(start, chance.uniform(0.7, 1.5), chance), int(chance.choice(_THICK)))


def _from_border_to_border(free: Grey, away: Points, chance: np.random.Generator) -> _Stroke | None:
    """Return a stroke across what is free."""
    start = _any((away >= 2) & (away <= chance.uniform(4, 22)), chance)
    points = None if start is None else _across(free, start, chance)
    return None if points is None else _Stroke(points, int(chance.choice(_THICK)))


def _bow(free: Grey, away: Points, chance: np.random.Generator) -> _Stroke | None:
    """Return a thin bow between two places at a border, as it cuts a corner off, or a flat bump."""
    border = (away > 0) & (away <= 1)
    first = _any(border, chance)
    if first is None:
        return None
    x, y = first.astype(int)
    least, most = _BOW
    left, top = max(0, x - most), max(0, y - most)
    near = border[top : y + most + 1, left : x + most + 1].copy()
    rows, columns = np.ogrid[: near.shape[0], : near.shape[1]]
    near &= (rows + top - y) ** 2 + (columns + left - x) ** 2 >= least**2
    last = _any(near, chance)
    if last is None:
        return None
    last += (left, top)
    along = last - first
    pulled = (first + last) / 2 + chance.uniform(-1, 1) * np.array((-along[1], along[0]))
    share = np.linspace(0, 1, 12)[:, None]
    bow = (1 - share) ** 2 * first + 2 * share * (1 - share) * pulled + share**2 * last
    return _Stroke(bow, int(chance.choice(_THIN)), not int(chance.integers(3)))


_SHAPES = (_inside, _at_border, _from_border_to_border, _bow, _at_border, _from_border_to_border)
"""Strokes are tried in this order; those that cross something are often refused."""


def _any(places: Mask, chance: np.random.Generator) -> Points | None:
    """Return x, y of one of the places (H, W), or None without any."""
    rows, columns = places.nonzero()
    if not len(rows):
        return None
    which = int(chance.integers(len(rows)))
    return np.array((columns[which], rows[which]), float)


def _across(free: Grey, start: Points, chance: np.random.Generator) -> Points | None:
    """Return points of a line through a place from border to border of what is free, or None if all are too long.

    As when people draw, the shortest of some directions is likely, but not certain.
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


def _wandering(start: Points, scale: float, chance: np.random.Generator) -> Points:
    """Return points of a stroke from a place in any direction, or of a scribble around it."""
    count = int(chance.integers(2, 5))
    if not int(chance.integers(4)):
        return np.asarray(start + chance.normal(0, scale * chance.uniform(2, 6), (2 * count, 2)))
    turn = chance.uniform(0, 2 * np.pi) + np.cumsum(chance.normal(0, 0.6, count))
    steps = scale * chance.uniform(1, 9, count)[:, None] * np.stack((np.cos(turn), np.sin(turn)), axis=1)
    return np.concatenate((start[None], start + np.cumsum(steps, axis=0)))


def _painted(shape: tuple[int, ...], stroke: _Stroke, chance: np.random.Generator) -> Mask:
    """Return a mask of a stroke, with a ragged border."""
    mask, corners = np.zeros(shape, np.uint8), [np.rint(stroke.points).astype(np.int32)[:, None]]
    cv2.polylines(mask, corners, False, 255, stroke.thick)
    if stroke.filled:
        cv2.fillPoly(mask, corners, 255)
    x, y, width, height = cv2.boundingRect(mask)
    part = mask[max(0, y - 4) : y + height + 4, max(0, x - 4) : x + width + 4]
    noise = cv2.GaussianBlur(chance.normal(0, 1, part.shape).astype(np.float32), (0, 0), 1.0)
    smooth = cv2.GaussianBlur(part.astype(np.float32), (0, 0), 0.7)
    part[:] = smooth + float(chance.uniform(0, 120)) * noise > 110
    return mask > 0


def name(light: Mask, changed: Mask, to_light: bool) -> str | None:
    """Return the label of what a stroke changes in a picture, both (H, W); None if that is not sure."""
    alone, beside, across = _LIGHT if to_light else _DARK
    x, y, width, height = cv2.boundingRect(changed.astype(np.uint8))
    window = (slice(max(0, y - _AROUND), y + height + _AROUND), slice(max(0, x - _AROUND), x + width + _AROUND))
    inside, same = changed[window].astype(np.uint8), (light[window] == to_light).astype(np.uint8)
    pieces, bodies = cv2.connectedComponents(inside)
    touching = cv2.dilate(inside, _NEAR) & same
    if not touching.any():
        apart = not (cv2.dilate(inside, _WIDE) & same).any()
        return alone if apart and pieces <= 4 else None
    if pieces > 3:
        return None
    free, rest = 1 - same, 1 - same - inside
    crumbs, maybe, splits = (_parts(rest, least) > _parts(free, least) for least in (_CRUMBS, _CRUMB, _SPLIT))
    if maybe != splits:
        return None
    reached = [_reached(same, bodies == piece) for piece in range(1, pieces)]
    if splits or any(len(parts) > 1 for parts in reached):
        return across
    once = cv2.connectedComponents(cv2.dilate(touching, _NEAR))[0] == 2  # twice may close a loop
    return beside if (once or crumbs) and len(set().union(*reached)) == 1 else None


def _parts(mask: Grey, least: int) -> int:
    """Return how many parts a mask has with at least `least` pixels, or with _PART that go on outside of it."""
    stats = cv2.connectedComponentsWithStats(mask, connectivity=4)[2][1:]
    left, top, width, height, size = stats.T
    outside = (left == 0) | (top == 0) | (left + width == mask.shape[1]) | (top + height == mask.shape[0])
    return int((size >= np.where(outside, min(least, _PART), least)).sum())


def _reached(same: Grey, piece: Mask) -> set[int]:
    """Return which parts of a mask a piece of a stroke touches; parts that are ragged borders do not count."""
    places, stats = cv2.connectedComponentsWithStats(same)[1:3]
    touched = np.unique(places[cv2.dilate(piece.astype(np.uint8), _NEAR) > 0]).tolist()
    return {part for part in touched if part and stats[part, cv2.CC_STAT_AREA] >= _PART}
