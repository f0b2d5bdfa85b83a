"""Runs a command with no more than Windows offers: `python portable_run.py coe.cli.inspect:main ...`.

Libraries are imported first, because each has branches for every system. After that, modules that Windows lacks cannot
be imported, and `os`, `mmap` and `ctypes` offer no more than on Windows.
"""

import ctypes
import importlib
import mmap
import os
import pathlib
import shutil
import signal
import sys

LIBRARIES = (
    "filelock psutil numpy cv2 PIL.Image yaml pydantic rich.progress typer typer.rich_utils networkx xxhash jinja2 "
    "matplotlib safetensors.torch sortedcontainers simplejpeg torch onnxruntime torch.utils._python_dispatch "
    "torch.utils._pytree multiprocessing.queues concurrent.futures.process subprocess tempfile"
)
NETWORKS = "torchvision.models"
"""Imported when a network is built, thus by commands alone; that takes seconds."""
MODULES = "fcntl resource termios grp pwd"
MISSING = {
    os: "O_NONBLOCK O_NOCTTY O_CLOEXEC O_DIRECTORY O_NOFOLLOW pread preadv readv pwrite posix_fadvise "
    "POSIX_FADV_DONTNEED sched_getaffinity fork geteuid getuid register_at_fork fchmod uname statvfs",
    mmap: "MAP_PRIVATE MAP_ANONYMOUS MAP_SHARED MAP_ANON",
    signal: "SIGKILL SIGHUP SIGUSR1 SIGALRM pthread_sigmask setitimer",
}


class _NoNameless(ctypes.CDLL):
    """As on Windows: libraries are loaded by file name, and the process itself is not a library."""

    def __init__(self, name, *arguments, **named):
        if name is None:
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        super().__init__(name, *arguments, **named)


def take_away(libraries):
    """Take from this process what Windows does not have, and /proc, once the libraries are imported."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    for name in libraries.split():
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.split(".")[0] in ("coe", "experts")]
    for name in MODULES.split():
        sys.modules[name] = None
    for module, names in MISSING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    ctypes.CDLL = _NoNameless
    read = pathlib.Path.read_text

    def read_text(self, *arguments, **named):
        if str(self).startswith(("/proc", "/sys", "/dev")):
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return read(self, *arguments, **named)

    pathlib.Path.read_text = read_text
    pathlib.Path.write_text = _no_proc(pathlib.Path.write_text)
    shutil.which = lambda *_, **__: None


def _no_proc(write):
    def write_text(self, *arguments, **named):
        if str(self).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return write(self, *arguments, **named)

    return write_text


if __name__ == "__main__":
    module_name, _, function = sys.argv[1].partition(":")
    take_away(f"{LIBRARIES} {NETWORKS}" if module_name.startswith("coe.") else LIBRARIES)
    sys.argv = ["coe", *sys.argv[2:]]
    getattr(importlib.import_module(module_name), function)()
