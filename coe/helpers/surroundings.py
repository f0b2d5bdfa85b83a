"""Settings that keep libraries from writing into the user's folders and from sending anything.

Nothing is written outside of the folders that the user named, and nothing calls out. Most libraries read their
environment once, on import: call the function of a library before you import it. Values that the user set stay.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

_PREFIX, _NEW_S = "coe-libraries-", 60.0


def folder() -> Path:
    """Return a temporary folder for files that libraries insist on writing; it is removed when the process ends.

    Those of processes that were killed go with the next one.
    """
    return _folder(os.getpid())


def quiet_onnxruntime() -> None:
    """Keep onnxruntime from writing a device id into the user's cache and from sending events; call before import."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def quiet_torch() -> None:
    """Keep torch's compiler from making a folder named after the user, who may have no name; call before its import."""
    # Without a place for temporary files, kinds that never load the compiler still run.
    with contextlib.suppress(OSError):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder() / "inductor"))


def quiet_matplotlib() -> None:
    """Keep matplotlib from writing its list of fonts into a folder of the user; call before import."""
    os.environ.setdefault("MPLCONFIGDIR", str(folder() / "matplotlib"))


def quiet_timm() -> None:
    """Keep timm's way to its hub of weights from calling out and from counting; call before import."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


@cache
def _folder(process: int) -> Path:
    # A folder for each process: a forked child must not remove the folder of its parent.
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    _hold(path)
    for other in path.parent.glob(f"{_PREFIX}*/"):
        with contextlib.suppress(OSError):
            # One that was made just now may not be locked yet.
            is_new = path.stat().st_mtime - other.stat().st_mtime < _NEW_S
            if not is_new and (number := _hold(other)) is not None:
                shutil.rmtree(other, ignore_errors=True)
                os.close(number)
    atexit.register(_remove, path, process)
    return path


def _hold(path: Path) -> int | None:
    """Lock a folder until this process ends, however it ends; None if another process holds it."""
    from filelock import lock_descriptor

    with contextlib.suppress(OSError):  # Windows opens no folder
        number = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            if lock_descriptor(number, blocking=False):
                return number
        os.close(number)
    return None


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
