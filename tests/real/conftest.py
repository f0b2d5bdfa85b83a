"""Fixtures of the tests of commands."""

from pathlib import Path

import pytest
from built_once import linked_copy


@pytest.fixture(scope="module")
def work(prepared_work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of synthetic weights for all runs of a module."""
    return linked_copy(prepared_work, tmp_path_factory.mktemp("bench") / "work")
