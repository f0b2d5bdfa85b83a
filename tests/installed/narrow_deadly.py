"""A kind for tests: as `narrow`, but a picture whose first pixel is `DEADLY` ends the process that prepares it."""

import os
import signal

from narrow import Narrow

DEADLY = (1, 2, 3)


class NarrowDeadly(Narrow):
    def __init__(self):
        super().__init__()
        self.name = "narrow_deadly"

    def preprocess(self, image, expert):
        if tuple(image[0, 0]) == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().preprocess(image, expert)
