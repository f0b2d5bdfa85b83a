"""Measures the costs of an expert on this CPU once in a process, and briefly, not whenever a test opens a line.

The costs are real measurements. A test about measuring uses the fixture `measures_itself`.
"""

import os

import pytest

from coe.runtime import trial
from coe.runtime.cpu import CpuDevice
from coe.runtime.reading import weights
from coe.store.kinds import FileKind

_measure = CpuDevice.measure
_costs = {}


def _measured_once(device, expert):
    kind = device.kinds[expert.kind]
    # Another trial does not measure the CPU; each file of a FileKind is a different architecture.
    if isinstance(kind, FileKind) or type(device).trial is not CpuDevice.trial:
        return _measure(device, expert)
    file = weights(device.store, expert)
    key = (
        *(type(device), type(kind), expert.kind, kind.max_batch),
        *(len(expert.labels), expert.input_size, expert.variant),
        *(device.threads, file.prepared is not None, file.bytes),
    )
    if key not in _costs:
        _costs[key] = _measure(device, expert)
    return _costs[key]


@pytest.fixture(scope="session", autouse=True)
def measured_once():
    """Keep the measurements of kinds with a skeleton; `make stress` measures each time, as users' lines do."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("COE_STRESS_SEED"):
            patch.setattr(CpuDevice, "measure", _measured_once)
            patch.setattr(trial, "QUICK_S", 0.02)
        yield


@pytest.fixture
def measures_itself(measured_once, monkeypatch):
    """Measure at each call, as users' lines do."""
    monkeypatch.setattr(CpuDevice, "measure", _measure)
