"""A kind for tests: as `narrow`, but a picture whose first pixel is `DEADLY` ends the process that prepares it."""

import os
import signal

from narrow import Narrow

from coe.core import Expert
from coe.store.kinds import ExpertInput, Image

DEADLY = (1, 2, 3)


class NarrowDeadly(Narrow):
    """The kind."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "narrow_deadly"

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        if tuple(image[0, 0]) == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().preprocess(image, expert)
