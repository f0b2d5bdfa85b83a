"""Where and how experts of a kind are run to be measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coe.inspector.profile import KindProfile

Backend = Literal["torch", "onnxruntime"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class Target:
    """A device with executors of so many threads, and a way to run experts there: the engine's, unless it is named."""

    device: str
    threads: int
    backend: Backend = "torch"
    precision: Precision = "fp32"

    @staticmethod
    def of(found: KindProfile) -> Target:
        """Return where and how a kind was measured."""
        return Target(found.device, found.threads, found.backend, found.precision)

    @property
    def is_the_engines(self) -> bool:
        """Tell whether the engine itself runs experts so."""
        return (self.backend, self.precision) == ("torch", "fp32")

    def step(self, kind: str) -> str:
        """Say what is measured, in the words of the progress bar."""
        if self.device == "cuda":
            return f"{kind} on the GPU"
        way = "" if self.is_the_engines else f", {self.backend} {self.precision}"
        return f"{kind}, {self.threads} thread(s){way}"
