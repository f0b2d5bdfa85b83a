"""The window in which a text stands on good parts: found by reading everywhere, and taken where all pictures agree.

The windows of a grid are read in the first picture; those that show the text, and nothing else, are read in the others.
The window around the middle of those that show it in all of them is taken, so that a part may lie a little askew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coe.core import Expert, Finding
from coe.errors import ConfigError
from coe.helpers.allowed_text import Reading
from coe.runtime.cpu import load_alone
from coe.store.kinds import Image, Kind
from coe.store.store import Store

Window = tuple[float, float, float, float]
_HEIGHTS = (0.12, 0.16, 0.21, 0.28, 0.38, 0.5)
"""The heights of windows, in shares of the picture's height."""
_SIGN = 0.75
"""The width of a character as a share of the height of a window that has a margin."""
_LEAST = 0.5
_KEPT = 24
_BATCH = 16


@dataclass(frozen=True, slots=True)
class FoundWindow:
    """A window, and what is read in it in each picture, in order."""

    window: Window
    findings: tuple[Finding, ...]

    @property
    def least(self) -> float:
        """The least score."""
        return min(finding.score for finding in self.findings)


def grid(text: str, height: int, width: int) -> list[Window]:
    """Return the windows, in shares of a picture of that size in pixels, in which a text might stand."""
    windows: list[Window] = []
    for share in _HEIGHTS:
        across = share * height / width * _SIGN * (len(text) + 1)
        if across <= 1:
            tops, lefts = (np.arange(0, 1 - side + 1e-9, side / 3) for side in (share, across))
            places = [(float(left), float(top)) for top in tops for left in lefts]
            windows += [(round(left, 3), round(top, 3), round(across, 3), share) for left, top in places]
    return windows


def _middle(windows: Sequence[Window]) -> Window:
    """Return the window around the middle of windows, which is that of the text, as large as most of them."""
    left, top, width, height = np.array(windows, np.float64).T
    size = float(np.median(width)), float(np.median(height))
    x = min(max(0.0, float(np.mean(left + width / 2)) - size[0] / 2), 1 - size[0])
    y = min(max(0.0, float(np.mean(top + height / 2)) - size[1] / 2), 1 - size[1])
    return round(x, 3), round(y, 3), round(size[0], 3), round(size[1], 3)


class WindowSearch:
    """Reads windows of pictures with an expert of the store; raises ConfigError for a kind that does not read."""

    def __init__(self, store: Store, weights: str, kind: Kind, text: str) -> None:
        if not kind.is_reader:
            raise ConfigError(f"{weights} is of kind '{kind.name}', which does not read")
        manifest = store.manifest(weights)
        self._kind, self._text = kind, text
        self._expert = replace(manifest.expert(), reads=Reading(allowed=(text,)))
        self._run = load_alone(store, manifest, kind, self._expert)

    def read(self, image: Image, windows: Sequence[Window]) -> list[Finding]:
        """Return what is read in each window of an image (H, W, 3) uint8 RGB."""
        findings: list[Finding] = []
        for start in range(0, len(windows), _BATCH):
            experts = [self._in(window) for window in windows[start : start + _BATCH]]
            inputs = [self._kind.preprocess(image, expert) for expert in experts]
            findings += self._run(inputs)
        return findings

    def find(
        self, images: Sequence[Image], track: Callable[[Sequence[int]], Iterable[int]] = lambda starts: starts
    ) -> FoundWindow | None:
        """Return the window that shows the text in all images; None if there is none. `track` follows the work."""
        first = images[0]
        windows = grid(self._text, *first.shape[:2])
        seen: list[tuple[Window, Finding]] = []
        for start in track(range(0, len(windows), _BATCH)):
            batch = windows[start : start + _BATCH]
            seen += zip(batch, self.read(first, batch), strict=True)
        good = sorted((one for one in seen if self._shows(one[1])), key=lambda one: -one[1].score)
        found = []
        for window, finding in good[:_KEPT]:
            findings = (finding, *(self.read(image, [window])[0] for image in images[1:]))
            if all(map(self._shows, findings)):
                found.append(FoundWindow(window, findings))
        if not found:
            return None
        middle = _middle([one.window for one in found])
        findings = tuple(self.read(image, [middle])[0] for image in images)
        if all(map(self._shows, findings)):
            return FoundWindow(middle, findings)
        return min(found, key=lambda one: float(np.abs(np.subtract(one.window, middle)).sum()))

    def _in(self, window: Window) -> Expert:
        return replace(self._expert, reads=Reading(window=window, allowed=(self._text,)))

    def _shows(self, finding: Finding) -> bool:
        return finding.label == self._expert.labels[0] and not finding.doubt and finding.score >= _LEAST
