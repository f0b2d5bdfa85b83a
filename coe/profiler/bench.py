"""Where a calibration measures the kinds of a board, each by one expert that stands for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from coe.core import Expert
from coe.errors import ConfigError, DeviceFull
from coe.inspector.inspector import Picture
from coe.inspector.profile import KindProfile
from coe.profiler.draft import Draft
from coe.profiler.measure import Backend, Precision, Way, measure, with_weights
from coe.profiler.steps import Steps
from coe.profiler.together import together
from coe.runtime.aside import aside
from coe.store import kinds
from coe.store.store import Store


def step_of(kind: str, threads: int, device: str = "cpu", backend: str = "torch", precision: str = "fp32") -> str:
    """Say what is measured, in the words of the progress bar."""
    if device == "cuda":
        return f"{kind} on the GPU"
    way = "" if (backend, precision) == ("torch", "fp32") else f", {backend} {precision}"
    return f"{kind}, {threads} thread(s){way}"


@dataclass(frozen=True, slots=True)
class Bench:
    """Kinds by their samples; what the draft knows already is passed over. A GPU is used within `device_bytes`."""

    store: Store
    samples: Mapping[str, Expert]
    draft: Draft
    pictures: Sequence[Picture]
    say: Callable[[str], None]
    steps: Steps
    device_bytes: int | None
    allow_kinds: Sequence[str] = ()

    def measure(
        self,
        kind: str,
        threads: int,
        limit_s: float,
        *,
        device: str = "cpu",
        backend: Backend = "torch",
        precision: Precision = "fp32",
    ) -> None:
        """Take the next step: measure a kind in a way; raises CannotMeasure, ConfigError."""
        self.steps.begin(step_of(kind, threads, device, backend, precision))
        if self.draft.knows(kind, device, threads, backend, precision):
            return
        known = kinds.resolve(kind, self.allow_kinds)
        found = measure(
            Way(self.samples[kind], known, self.store, device, threads, backend, precision, self.device_bytes),
            images=[Path(picture.image) for picture in self.pictures if isinstance(picture.image, str | Path)],
            limit_s=limit_s,
            say=self.say,
            tick=self.steps.part,
        )
        self.draft.add_kind(found)

    def measure_together(self, kind: str, device: str, threads: int, most: int) -> None:
        """Find out how fast 1, 2, ... executors are together, by a kind that was measured.

        What is known is not measured again; more executors than once fitted are tried, since memory may be another now.
        """
        speeds = list(self.draft.scaling(device, threads)) or [1.0]
        if len(speeds) < most:
            speeds += self._faster(kind, device, threads, range(len(speeds) + 1, most + 1))
        self.draft.add_scaling(device, threads, tuple(speeds))

    def _faster(self, kind: str, device: str, threads: int, numbers: Iterable[int]) -> Iterator[float]:
        """Give the speeds of so many executors together, until they do not fit."""
        known = self.draft.known.kind(kind, device, threads)
        images = {} if device == "cpu" or known is None else {"images": known.max_batch}
        sample, one = self.samples[kind], kinds.resolve(kind, self.allow_kinds)
        with TemporaryDirectory(prefix="coe-profile-") as folder:
            whole = aside(lambda: with_weights(sample, one, self.store, Path(folder), lambda sentence: None))
            for number in numbers:
                try:
                    yield together(
                        sample, one, whole, number, threads, device=device, device_bytes=self.device_bytes, **images
                    )
                except (ConfigError, DeviceFull):
                    return

    def kinds_at(self, device: str, threads: int) -> dict[str, KindProfile]:
        """Return what was measured of kinds, for executors of so many threads."""
        found = {kind: self.draft.known.kind(kind, device, threads) for kind in self.samples}
        return {kind: one for kind, one in found.items() if one is not None}
