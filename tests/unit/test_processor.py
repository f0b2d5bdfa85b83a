"""Threads of operators: never more than OpenMP gives, because torch would count on them."""

import os
import subprocess
import sys

import pytest
import torch

from coe.runtime.processor import bound_threads, has_bf16, trainer_threads, within_limit


@pytest.fixture(autouse=True)
def _threads_restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("limit", "allowed"), [("1", 1), ("3", 3), ("9", 4), ("", 4), ("0", 4), ("many", 4)])
def test_threads_stay_within_the_limit_of_openmp(monkeypatch, limit, allowed):
    monkeypatch.setenv("OMP_THREAD_LIMIT", limit)
    assert within_limit(4) == trainer_threads(4) == allowed
    bound_threads(4)
    assert torch.get_num_threads() == allowed


def test_a_training_takes_all_cores_without_a_limit(monkeypatch):
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)
    assert trainer_threads(0) == os.cpu_count()


@pytest.mark.parametrize(("limit", "number", "expected"), [("1", None, "1"), ("1", "2", "2"), ("99999", None, None)])
def test_threads_that_nobody_bounds_stay_within_the_limit_of_openmp_too(limit, number, expected):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    environment |= {"OMP_THREAD_LIMIT": limit} | ({"OMP_NUM_THREADS": number} if number else {})
    code = "import os, coe; print(os.environ.get('OMP_NUM_THREADS'))"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(expected)


@pytest.mark.skipif(not has_bf16(), reason="the processor has no bf16")
@pytest.mark.skipif(os.environ.get("OMP_THREAD_LIMIT") != "1", reason="OpenMP gives more than one thread here")
def test_products_in_bf16_are_right_where_openmp_gives_fewer_threads():
    bound_threads(2)
    exact = torch.nn.Linear(6144, 384)
    pixels = torch.randn(6, 6144)
    rounded = torch.nn.functional.linear(pixels.bfloat16(), exact.weight.bfloat16(), exact.bias.bfloat16())
    torch.testing.assert_close(rounded.float(), exact(pixels), atol=0.05, rtol=0.05)
