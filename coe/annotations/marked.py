"""What all forms become: pictures with labelled boxes in pixels, and a list of all that does not fit.

Pictures are found by the names that annotation programs keep: with folders, prefixes, addresses.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from coe.errors import ConfigError, first_line, list_few
from coe.helpers.spelling import composed
from coe.pictures.exif import ACROSS, seen_size
from coe.pictures.formats import EXTENSIONS

_SHOWN = 20
_ROUNDED_PX = 1.0
"""How far a box may stand over an edge by rounding alone."""
_UPLOADED = re.compile(r"(^|[/\\])[0-9a-f]{8}-(?=[^/\\]+$)")
"""What Label Studio puts before the name of an uploaded file."""


@dataclass(frozen=True, slots=True)
class MarkedBox:
    """A box in pixels of the picture as it is seen, from its left upper corner; `where` says where it was drawn."""

    label: str
    left: float
    top: float
    right: float
    bottom: float
    where: str


@dataclass(frozen=True, slots=True)
class MarkedPicture:
    """A picture that somebody looked at: without boxes it is a good one. `width` and `height` are in pixels."""

    path: Path
    width: int
    height: int
    boxes: tuple[MarkedBox, ...]


@dataclass(frozen=True, slots=True)
class MarkedSet:
    """What a file of annotations holds: labels in their order, and the pictures that somebody looked at."""

    labels: tuple[str, ...]
    pictures: tuple[MarkedPicture, ...]


@dataclass(slots=True)
class Findings:
    """All that does not fit, by what it has in common, and what was left out or changed and is no fault."""

    faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    notes: Counter[str] = field(default_factory=Counter)

    def fault(self, what: str, where: str) -> None:
        """Note a fault: `what` is the sentence that all of its kind have in common."""
        self.faults[what].append(where)

    def refuse(self, source: Path) -> None:
        """Raise ConfigError with all faults, kind by kind, if there are any."""
        if self.faults:
            lines = [f"{len(at)} x {what}: {list_few(at, _SHOWN, '; ')}" for what, at in self.faults.items()]
            raise ConfigError(f"{source}: nothing was written; " + " | ".join(lines))


def turned(box: MarkedBox, degrees: float) -> MarkedBox:
    """Return the upright box around a box that is turned about its middle; one without area stays as it is."""
    wide, high = box.right - box.left, box.bottom - box.top
    if not degrees or not (wide > 0 < high):
        return box
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    half_wide, half_high = (wide * cos + high * sin) / 2, (wide * sin + high * cos) / 2
    return replace(box, left=x - half_wide, top=y - half_high, right=x + half_wide, bottom=y + half_high)


class PictureIndex:
    """The pictures in `folder` without `masks`, and what does not fit; each may be taken once. Raises ConfigError."""

    def __init__(self, folder: Path, findings: Findings, *, clip: bool = False, masks: Collection[Path] = ()) -> None:
        if not folder.is_dir():
            raise ConfigError(f"--images: {folder} is not a folder")
        self.folder, self.findings, self._clip = folder, findings, clip
        files = [path for path in folder.rglob("*") if not path.name.startswith(".") and path.is_file()]
        self.paths = sorted(
            path for path in files if path.suffix.lower() in EXTENSIONS and not (masks and path.resolve() in masks)
        )
        self._unread = {composed(path.name) for path in files if path.suffix.lower() not in EXTENSIONS}
        self._by_end: dict[str, list[Path]] = defaultdict(list)
        self._by_name = {composed(self.name(path)): path for path in self.paths}
        for name, path in self._by_name.items():
            parts = name.split("/")
            for at in range(len(parts)):
                for end in {"/".join(parts[at:]), "/".join(parts[at:]).removesuffix(path.suffix)}:
                    self._by_end[end].append(path)
        self._unproven: set[Path] = set()  # pictures that are turned, and whose size does not tell how boxes lie
        self.taken: dict[Path, str] = {}
        self.pictures: list[MarkedPicture] = []

    def __repr__(self) -> str:
        return f"<PictureIndex {self.folder}: {len(self.taken)} of {len(self.paths)} taken>"

    def name(self, path: Path) -> str:
        """Return the name of a picture within the folder."""
        return path.relative_to(self.folder).as_posix()

    def knows(self, name: str) -> bool:
        """Tell whether a picture has this name, with its ending or without."""
        return composed(name) in self._by_end

    def find(self, names: Iterable[str], where: str, *, told: bool = True) -> Path | None:
        """Return the picture that is called by one of some names, the first that fits; note why if there is none.

        A name may be an address. Its end counts, as many folders of it as it takes to tell pictures apart. If it is
        `told`, it is noted if folders that both have differ.
        """
        names = list(names)
        each = [*names, *map(_plain, names)]
        for name in [*each, *(_UPLOADED.sub(r"\1", name) for name in each)]:
            parts = composed(name).replace("\\", "/").strip("/").split("/")
            ends = ("/".join(parts[at:]) for at in range(len(parts)))
            end = next((end for end in ends if end in self._by_end), None)
            if end is None:
                continue
            fitting = [self._by_name[end]] if end in self._by_name else self._by_end[end]
            if len(fitting) > 1:
                both = " and ".join(map(self.name, fitting))
                self.findings.fault(
                    "a name matches several pictures; rename one, or give a narrower --images", f"{name}: {both}"
                )
                return None
            if told and end.count("/") + 1 < min(len(parts), self.name(fitting[0]).count("/") + 1):
                self.findings.notes["pictures were found by name, in a folder with another name"] += 1
            if (path := fitting[0]) in self.taken:
                both = f"{self.name(path)} ({self.taken[path]} and {where})"
                self.findings.fault("a picture is named twice; keep one of them", both)
                return None
            self.taken[path] = where
            return path
        is_unread = any(composed(name).replace("\\", "/").rpartition("/")[2] in self._unread for name in names)
        reason = "in an unsupported format; save it as PNG" if is_unread else f"not in {self.folder}"
        self.findings.fault(f"a picture is {reason}", f"{names[0] if names else 'no name'} ({where})")
        return None

    def size(self, path: Path, stated: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Return width and height of a picture as it is seen; note if it is unreadable, or not as large as stated."""
        try:
            seen = seen_size(path)
            width, height = seen.width, seen.height
        except Exception as error:  # Pillow raises errors of many types for damaged files
            self.findings.fault("a picture cannot be read", f"{self.name(path)} ({first_line(error)})")
            return None
        if stated is not None and stated != (width, height):
            sizes = f"{self.name(path)} is {width} x {height}, stated {stated[0]} x {stated[1]}"
            self.findings.fault(
                "a picture is not as large as its annotations say; give the picture on which they were drawn", sizes
            )
            return None
        if seen.turn > 1 and (stated is None or width == height or seen.turn < ACROSS):
            self._unproven.add(path)
        return width, height

    def add(self, path: Path, size: tuple[int, int], boxes: Sequence[MarkedBox]) -> None:
        """Add a picture that somebody looked at, with its boxes; what does not fit of these is noted.

        What stands over the edge by a pixel at most, as rounding does, or with `clip` by more, is cut off there.
        """
        findings, (width, height) = self.findings, size
        if boxes and path in self._unproven:
            findings.notes["pictures are rotated by EXIF: are their boxes right in the sheet?"] += 1
        kept = []
        for box in boxes:
            place = f"{self.name(path)} {box.where} ({box.left:g}, {box.top:g}, {box.right:g}, {box.bottom:g})"
            over = max(-box.left, -box.top, box.right - width, box.bottom - height)
            if not (box.right > box.left and box.bottom > box.top):  # also NaN
                findings.fault("a box has no area; draw it again or delete it", place)
            elif box.right <= 0 or box.bottom <= 0 or box.left >= width or box.top >= height:
                findings.fault("a box lies outside of its picture; delete it, or give the right picture", place)
            elif over > _ROUNDED_PX and not self._clip:
                findings.fault("a box extends beyond its picture; correct it, or clip all boxes with --clip", place)
            else:
                if over > _ROUNDED_PX:
                    findings.notes["boxes that extend beyond their picture were clipped"] += 1
                left, top = max(0.0, box.left), max(0.0, box.top)
                right, bottom = min(width, box.right), min(height, box.bottom)
                kept.append(replace(box, left=left, top=top, right=right, bottom=bottom))
        self.pictures.append(MarkedPicture(path, width, height, tuple(kept)))

    def take_rest(self, source: str, *, as_good: bool) -> None:
        """Take the pictures that nobody named as good ones, or leave them out."""
        for path in [path for path in self.paths if path not in self.taken]:
            if not as_good:
                self.findings.notes[f"pictures that {source} does not name were left out"] += 1
            elif size := self.size(path):
                self.add(path, size, ())


def _plain(address: str) -> str:
    """Return the place of an address, in which %20 is a space; no library of addresses belongs here."""
    place, _, query = address.partition("?")
    raw = (query.removeprefix("d=") if query.startswith("d=") else place).encode()  # Label Studio's local files
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), raw).decode(errors="replace")
