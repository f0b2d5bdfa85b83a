"""Everything here needs a GPU: it is marked `gpu` and skipped where there is none."""

import gc
import sys
from pathlib import Path

import pytest

from coe.board import rules
from coe.runtime.cuda import torch_driver
from coe.store.store import Store
from coe.variants.prepare import Preparer

BOARD = """
board: gpu
experts:
  body-a: {kind: resnet18, labels: [ok, bad], input: 96}
  body-b: {kind: resnet18, labels: [ok, bad], input: 96}
  body-c: {kind: resnet18, labels: [ok, bad], input: 96}
  joint: {kind: yolov5n, labels: [joint, bridge], input: 160, reject: [bridge], then: {none: OK}}
components:
  A: {count: 5, inspect: body-a, then: {ok: joint, bad: joint}}
  B: {count: 3, inspect: body-b, then: {ok: joint, bad: REVIEW}}
  C: {count: 1, inspect: body-c, then: {ok: OK, bad: NG}}
"""


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.gpu)
            # The first capture of each size looks for the quickest kernels; libraries muse about those that are none.
            item.add_marker(pytest.mark.timeout(900))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning:torch.*"))
            if not torch_driver.is_there():
                item.add_marker(pytest.mark.skip(reason="there is no GPU that torch can use"))


@pytest.fixture(autouse=True)
def _empty():
    import torch

    # pytest keeps the last failure, and with it the failed test's device, until the next test is called.
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    gc.collect()
    torch_driver.driver().trim()
    torch.cuda.reset_peak_memory_stats()


@pytest.fixture(scope="session")
def board(tmp_path_factory):
    """A board of real networks with random weights, prepared in every variant that a GPU runs."""
    import torch

    from coe.store import kinds, skeletons

    folder = tmp_path_factory.mktemp("gpu")
    path = folder / "gpu.yaml"
    path.write_text(BOARD, encoding="utf-8")
    found, store = rules.load(path), Store(folder / "store")
    for seed, expert in enumerate(found.experts.values()):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            state = skeletons.skeleton(kinds.resolve(expert.kind), expert, optional=()).state_dict()
        store.put(expert.weights, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, state=state)
        Preparer(store, ("fp32", "fp16", "q8")).prepare(expert.weights)
    return path, found, store
