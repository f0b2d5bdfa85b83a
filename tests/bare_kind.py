"""A kind of which a test uses the network alone."""

from collections.abc import Sequence
from typing import Any

from coe.core import Expert, Finding
from coe.store.kinds import ExpertInput, Image, ModuleKind


class BareKind(ModuleKind):
    """A classifier that prepares no pictures and reads no answers."""

    task = "classify"

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        raise NotImplementedError

    def postprocess(self, outputs: Any, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        raise NotImplementedError
