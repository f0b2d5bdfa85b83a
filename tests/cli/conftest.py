"""Fixtures of the tests of commands."""

import pytest
from built_once import linked_copy


@pytest.fixture(scope="module")
def work(prepared_work, tmp_path_factory):
    return linked_copy(prepared_work, tmp_path_factory.mktemp("bench") / "work")
