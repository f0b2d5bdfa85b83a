"""What has happened on the line, for policies to look at. Only the controller writes here.

A policy that keeps a ranking watches, and is told of each image and finding, so that it need not look at all images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coe.core import Finding, Request


@dataclass(frozen=True, slots=True)
class ImageView:
    """An image under way: its `place` among all images (0 for the first), when it came, and its findings so far.

    Its component, serial, refdes and due time are those of the request; serial and refdes may be "". `findings` are by
    the id under which the expert looked, in the order in which they came.
    """

    request: Request
    place: int
    arrived_s: float
    findings: Mapping[str, Finding] = field(default_factory=dict, repr=False)


class HistoryWatcher:
    """The base class of observers of images and findings; each method does nothing unless it is overridden."""

    def arrived(self, image: ImageView) -> None:
        """Take note of an image that has come; its first stage is not open yet."""

    def found(self, image: ImageView, finding: Finding) -> None:
        """Take note of a finding; it is among the image's findings already, and the stages it leads to are not open."""

    def answered(self, image: ImageView) -> None:
        """Take note of an image that has its result."""


class History:
    """The images under way with their findings."""

    def __init__(self) -> None:
        self.images = 0
        """How many images have come: the next image's place."""
        self._under_way: dict[int, ImageView] = {}
        self._findings: dict[int, dict[str, Finding]] = {}
        self._watchers: list[HistoryWatcher] = []

    def __repr__(self) -> str:
        return f"<History of {self.images} images, {len(self._under_way)} under way>"

    # Anybody may read these

    @property
    def under_way(self) -> Mapping[int, ImageView]:
        """The images without a result, by request id, in the order in which they came."""
        return self._under_way

    def watch(self, watcher: HistoryWatcher) -> None:
        """Tell a watcher of every image and finding from now on, and first of the images that are under way."""
        self._watchers.append(watcher)
        for image in self._under_way.values():
            watcher.arrived(image)
            for finding in image.findings.values():
                watcher.found(image, finding)

    def tell_only(self, watchers: Sequence[HistoryWatcher]) -> None:
        """Tell nobody else any more; these watchers know the images under way."""
        self._watchers = list(watchers)

    # Only the controller calls these

    def arrived(self, request: Request, now: float) -> None:
        """Count an image; a picture that could not be decoded never comes here, and has no place."""
        findings: dict[str, Finding] = {}
        image = ImageView(request, self.images, now, findings)
        self.images += 1
        self._under_way[request.id] = image
        self._findings[request.id] = findings
        for watcher in self._watchers:
            watcher.arrived(image)

    def found(self, request_id: int, finding: Finding) -> None:
        """Note a finding of an image."""
        self._findings[request_id][finding.expert] = finding
        for watcher in self._watchers:
            watcher.found(self._under_way[request_id], finding)

    def answered(self, request_id: int) -> None:
        """Forget an image that has its result; an image that was refused is unknown here."""
        image = self._under_way.pop(request_id, None)
        if image is not None:
            del self._findings[request_id]
            for watcher in self._watchers:
                watcher.answered(image)
