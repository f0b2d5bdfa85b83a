"""Only this file imports ultralytics first: offline, and so that it writes into one folder of ours alone.

ultralytics reads its environment at its first import, so every module here that needs it calls `prepare` first. Else
ultralytics would look for newer versions, send usage events, download fonts and weights, install packages, and keep
settings in the user's home folder.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coe.helpers import surroundings

_LOCK = threading.Lock()
_ENVIRONMENT = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"}


def prepare(folder: Path | None = None) -> None:
    """Import ultralytics quietly; calls after the first do nothing.

    `folder` is for ultralytics' settings; None means a temporary folder that is removed when the process ends. Raises
    ModuleNotFoundError if ultralytics is not installed.
    """
    with _LOCK:
        if "ultralytics" in sys.modules:
            _silence()
            return
        home = folder or surroundings.folder()
        home.mkdir(parents=True, exist_ok=True)
        os.environ.update(_ENVIRONMENT, YOLO_CONFIG_DIR=str(home))
        surroundings.quiet_matplotlib()
        # ultralytics sets OMP_NUM_THREADS=1 if it is unset; every child process would inherit that.
        kept = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "ULTRALYTICS_API_KEY")}
        os.environ.pop("ULTRALYTICS_API_KEY", None)
        try:
            _silence()
        finally:
            _restore(kept)


def _silence() -> None:
    from ultralytics.utils import SETTINGS, events, tqdm

    if not getattr(tqdm.TQDM, "quiet", False):
        tqdm.TQDM.__init__ = _hidden(tqdm.TQDM.__init__)
        tqdm.TQDM.quiet = True
    events.events.enabled = False
    # In memory alone: the manager's `update` would write its file again.
    for name in ("sync", "clearml", "comet", "dvc", "mlflow", "raytune", "tensorboard", "wandb"):
        if name in SETTINGS:
            dict.__setitem__(SETTINGS, name, False)


def _hidden(begin: Callable[..., None]) -> Callable[..., None]:
    """Make a progress bar that prints nothing: ultralytics shows some whatever `verbose` says; `Progress` reports."""

    def quiet(self: Any, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **{**named, "disable": True})

    return quiet


def _restore(kept: dict[str, str | None]) -> None:
    for name, value in kept.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
