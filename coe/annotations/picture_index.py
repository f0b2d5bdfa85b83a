"""The pictures of a folder, found by the names that annotation programs keep: with folders, prefixes, addresses."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from coe.annotations.marked import Findings, MarkedBox, MarkedPicture, fitted
from coe.errors import ConfigError, first_line
from coe.pictures.finding import EXTENSIONS
from coe.pictures.label_folders import GOOD, letters
from coe.spelling import composed

_ORIENTATION, _ON_ITS_SIDE, _TURNED = 0x0112, (5, 6, 7, 8), range(2, 9)
_UPLOADED = re.compile(r"(^|[/\\])[0-9a-f]{8}-(?=[^/\\]+$)")
"""What Label Studio puts before the name of an uploaded file."""


def _plain(address: str) -> str:
    """Return the place of an address, in which %20 is a space; no library of addresses belongs here."""
    raw = address.partition("?")[0].encode()
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), raw).decode(errors="replace")


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open a picture, of which only the head is read; Pillow warns of large ones, which boards are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path) as picture:
            yield picture


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
        for path in self.paths:
            for end in {composed(path.name), composed(path.stem)}:
                self._by_end[end].append(path)
        self._by_name = {composed(self.name(path)): path for path in self.paths}
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
            if exact := self._by_name.get("/".join(parts)):
                return self._take(exact, where)
            found = self._by_end.get(parts[-1], [])
            best = [(self._common(path, parts), path) for path in found]
            most = max((count for count, _ in best), default=0)
            fitting = [path for count, path in best if count == most]
            if len(fitting) > 1:
                both = " and ".join(map(self.name, fitting))
                self.findings.fault(
                    "a name fits several pictures; rename one, or give a narrower --images", f"{name}: {both}"
                )
                return None
            if fitting:
                if told and most < min(len(parts), len(fitting[0].relative_to(self.folder).parts)):
                    self.findings.notes["pictures were found by their name, in a folder that is called otherwise"] += 1
                return self._take(fitting[0], where)
        is_unread = any(composed(name).replace("\\", "/").rpartition("/")[2] in self._unread for name in names)
        reason = "of a format that is not read; save it as PNG" if is_unread else f"not in {self.folder}"
        self.findings.fault(f"a picture is {reason}", f"{names[0] if names else 'no name'} ({where})")
        return None

    def _common(self, path: Path, parts: list[str]) -> int:
        own = composed(self.name(path)).split("/")
        count = 1  # the last may be without its ending
        for one, other in zip(own[-2::-1], parts[-2::-1], strict=False):
            if one != other:
                break
            count += 1
        return count

    def _take(self, path: Path, where: str) -> Path | None:
        if path in self.taken:
            both = f"{self.name(path)} ({self.taken[path]} and {where})"
            self.findings.fault("a picture is named twice; keep one of them", both)
            return None
        self.taken[path] = where
        return path

    def size(self, path: Path, stated: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Return width and height of a picture as it is seen; note if it is unreadable, or not as large as stated."""
        try:
            with opened(path) as picture:
                width, height = picture.size
                turn = picture.getexif().get(_ORIENTATION)
                # Of a TIFF Pillow gives the size as it is seen.
                if picture.format != "TIFF" and turn in _ON_ITS_SIDE:
                    width, height = height, width
        except Exception as error:  # Pillow raises errors of many types for damaged files
            self.findings.fault("a picture cannot be read", f"{self.name(path)} ({first_line(error)})")
            return None
        if stated is not None and stated != (width, height):
            sizes = f"{self.name(path)} is {width} x {height}, stated {stated[0]} x {stated[1]}"
            self.findings.fault(
                "a picture is not as large as its annotations say; give the picture they were drawn in", sizes
            )
            return None
        if turn in _TURNED and (stated is None or width == height or turn not in _ON_ITS_SIDE):
            self._unproven.add(path)
        return width, height

    def add(self, path: Path, size: tuple[int, int], boxes: Iterable[MarkedBox], words: Iterable[str] = ()) -> None:
        """Add a picture that somebody looked at, with its boxes.

        One without boxes on which somebody put `words` as a whole, other than for good parts, is no good one.
        """
        width, height = size
        boxes = list(boxes)
        if not boxes and any(letters(word) not in GOOD for word in words):
            self.set_aside(path, "pictures without a box on which somebody said something else were left out")
            return
        if boxes and path in self._unproven:
            self.findings.notes["pictures are turned by their EXIF block: do their boxes lie right in the sheet?"] += 1
        kept = fitted(boxes, self.name(path), width, height, self.findings, clip=self._clip)
        self.pictures.append(MarkedPicture(path, width, height, kept))

    def set_aside(self, path: Path, why: str) -> None:
        """Leave a picture out that was found, and say why."""
        self.findings.notes[why] += 1
