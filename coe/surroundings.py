"""What libraries would write elsewhere, or tell elsewhere, is switched off here or goes into a folder of this process.

Law: nothing is written outside of what the user named, and nothing calls out. Most libraries read their environment
once, when they are imported, so whoever imports one of these calls its function first. What the user has set stays.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


def folder() -> Path:
    """Return a folder for what libraries insist on writing; it is made when needed and goes when the process ends."""
    return _folder(os.getpid())


def quiet_onnxruntime() -> None:
    """See to it that onnxruntime, not yet imported, keeps no device id in the user's cache and sends no events."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def quiet_torch() -> None:
    """See to it that torch's compiler, which training imports, makes no folder by the user's name in that for
    temporary files; a user need not even have a name.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "inductor"))


def quiet_matplotlib() -> None:
    """See to it that matplotlib, not yet imported, keeps its list of fonts in no folder of the user's."""
    os.environ.setdefault("MPLCONFIGDIR", str(folder() / "matplotlib"))


@cache
def _folder(process: int) -> Path:
    # Of the process that asks: a forked child must not take away that of its parent.
    path = Path(tempfile.mkdtemp(prefix="coe-"))
    atexit.register(_remove, path, process)
    return path


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
