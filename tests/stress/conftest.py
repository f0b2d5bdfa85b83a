"""Long runs with a seed of their own, printed so that a failure can be had again: `make stress SEED=n`."""

import os
import random
from pathlib import Path

import pytest

SEED = int(os.environ.get("COE_STRESS_SEED", "1"))


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.stress)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture
def chance(request):
    """Random numbers of a test, the same for the same seed whichever tests run before."""
    print(f"seed: {SEED}")
    return random.Random(f"{SEED} {request.node.name}")
