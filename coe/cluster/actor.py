"""The process of a box on a machine of a Ray cluster."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coe.cluster.box import BoxWorker
from coe.cluster.links import OpenBox
from coe.cluster.messages import BoxFacts, BoxReport, CarriedImage, Parcel
from coe.errors import CoeError, sentence_of
from coe.helpers.versions import own
from coe.inspector.precision import LineCosts

_FETCH_S = 60.0
"""An image may take at most this long to arrive, in seconds."""


@dataclass(frozen=True, slots=True)
class BoxRefusal:
    """Why a machine cannot be a box of this line."""

    reason: str


class BoxActor:
    """The process of a box. Methods of one group run one at a time, those of different groups side by side."""

    def __init__(self) -> None:
        self._box: BoxWorker | None = None
        self._parcels: dict[int, Parcel] = {}
        self._next = 0

    def versions(self) -> dict[str, str]:
        """Return the versions of all that must be the same everywhere."""
        return versions()

    def open(self, id: str, open_box: OpenBox, costs: LineCosts | None) -> BoxFacts | BoxRefusal:
        """Make the box; measures costs if `costs` is None.

        Returns a BoxRefusal where the box would raise a CoeError, so that the line sees our sentence, and not Ray's.
        """
        try:
            self._box = open_box(id, costs, _fetched)
        except CoeError as error:
            return BoxRefusal(sentence_of(error))
        return self._box.facts

    def take(self, parcel: Parcel) -> None:
        """Take a parcel in, once those before it have come: Ray may deliver them in another order."""
        assert self._box is not None
        self._parcels[parcel.number] = parcel
        while (ready := self._parcels.pop(self._next, None)) is not None:
            self._next += 1
            self._box.take(ready)

    def report(self, wait_s: float) -> BoxReport:
        """Wait at most `wait_s` seconds for the next report, and return it."""
        assert self._box is not None
        return self._box.report(wait_s)

    def close(self) -> BoxReport | None:
        """End the box; return its last report, None if it was never made."""
        return None if self._box is None else self._box.close()


def _fetched(shared: Sequence[Any]) -> list[CarriedImage]:
    """Return images on their box. The pixels of arrays are not copied: they lie in the object store of the box."""
    import ray

    images: list[CarriedImage] = ray.get(list(shared), timeout=_FETCH_S)
    return images


def versions() -> dict[str, str]:
    """Return the versions in this process of all that must be the same on all machines of a line."""
    import ray

    return {"coe": own(), "Python": platform.python_version(), "Ray": ray.__version__}
