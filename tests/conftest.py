"""Set-up of all tests: a stable hypothesis profile, board files from text, and the folder of real images."""

import gc
import importlib
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from coe import config as coe_config
from coe.helpers import system

settings.register_profile(
    "stable",
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile(
    "stress", parent=settings.get_profile("stable"), derandomize=False, max_examples=300, print_blob=True
)
STRESS = bool(os.environ.get("COE_STRESS_SEED"))
settings.load_profile("stress" if STRESS else "stable")

PLUGINS = ("tiny_line", "built_once", "common_trunk", "measured_once", "thread_boxes")
pytest.register_assert_rewrite(*PLUGINS)


def pytest_configure(config):
    """Load the plugins of this folder, but not in the process that hands tests out: it would import torch first."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        for name in PLUGINS:
            config.pluginmanager.import_plugin(name)


# torch reads this variable when it is loaded, which is later. A device gives each operator all cores of the machine. On
# networks as small as those of the tests, threads wait for each other longer than they calculate; if other processes
# also keep the cores busy, a line takes five times the CPU seconds. A value in the environment is kept, and
# `make stress` runs with as many threads as users have.
if not STRESS:
    os.environ.setdefault("OMP_THREAD_LIMIT", "1")

# A process that finds no list of fonts where matplotlib keeps it makes one, in seconds.
os.environ.setdefault("MPLCONFIGDIR", str(Path(__file__).parents[1] / ".pytest_cache" / "matplotlib"))

# A shell that starts the tests in the background makes them, and all commands that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests must not use the profile of the person who runs them.
os.environ[coe_config.PROFILE_VARIABLE] = os.devnull + "/none"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among the objects of imports, which stay, now or later: lines collect it as they open."""
    gc.disable()
    yield
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Tests of either process import these at some time, and each look for garbage would go through them until then.
        for name in ("torch._dynamo", "timm", "networkx"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    # A tenth of the tests' time went into looks for garbage; each module ends with one.
    gc.set_threshold(300_000, 50, 100)
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def collections_stay_short():
    """Exclude what the tests of a module imported from later collections, too."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def all_cores_are_free():
    """Watch no cores when a line opens: that takes time, and threads would depend on what else the machine does."""
    from coe.inspector import line_devices

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_devices, "free_cores", system.usable_cores)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk():
    """Wait for no file to be on the disk: it is gone when its test has passed, and no power fails meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        if not STRESS:
            patch.setattr(os, "fsync", lambda number: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def the_disk_has_room():
    """Let disks have room, however full that of this machine is: a full one is a fault, and keeps one version alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=2 << 36, used=1 << 36, free=1 << 36))
        yield


_FSYNC = os.fsync


@pytest.fixture
def disk_is_waited_for(monkeypatch):
    """Write files to the disk as anywhere: the system forgets only those that are there (`system.forget_file`)."""
    monkeypatch.setattr(os, "fsync", _FSYNC)


@pytest.fixture
def board_file(tmp_path):
    """Write a text as `board.yaml` and return its path."""

    def write(text):
        path = tmp_path / "board.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.fixture(scope="session")
def data():
    """The folder of real images; a test that needs it is skipped if it is missing."""
    folder = Path(os.environ.get("COE_DATA", "../shared/data"))
    if not folder.is_dir():
        pytest.skip(f"there are no real images at {folder}; set COE_DATA to the folder that holds them")
    return folder
