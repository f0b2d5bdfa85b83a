"""Where and how an expert runs to be measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coe.inspector.profile import KindProfile

Backend = Literal["torch", "onnxruntime"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class Target:
    """A device, the threads of an executor, and a way to run experts; the default way is the engine's."""

    device: str
    threads: int
    backend: Backend = "torch"
    precision: Precision = "fp32"

    @staticmethod
    def of(measured: KindProfile) -> Target:
        """Return where and how a kind was measured."""
        return Target(measured.device, measured.threads, measured.backend, measured.precision)

    @property
    def is_the_engines(self) -> bool:
        """Tell whether the engine runs experts in this way."""
        return (self.backend, self.precision) == ("torch", "fp32")

    def step(self, kind: str) -> str:
        """Return the name of the step for the progress bar."""
        if self.device == "cuda":
            return f"{kind} on the GPU"
        way = "" if self.is_the_engines else f", {self.backend} {self.precision}"
        return f"{kind}, {self.threads} thread(s){way}"
