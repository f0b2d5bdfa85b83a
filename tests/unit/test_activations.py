"""What a run takes beside its weights: counted by tensor, and measured by the process's growth."""

import sys

import pytest
import torch

from coe.runtime.trial import peak_bytes, peak_growth_bytes, plausible_bytes

MIB = 1 << 20


def test_tensors_are_counted_while_they_live_and_views_take_nothing():
    def run():
        one = torch.zeros(MIB, dtype=torch.uint8)
        two = torch.zeros(3 * MIB, dtype=torch.uint8)
        del one
        three = torch.zeros(2 * MIB, dtype=torch.uint8)
        return two, three

    assert peak_bytes(run) == 5 * MIB

    def run():
        whole = torch.zeros(MIB, dtype=torch.uint8)
        return whole.view(2, -1).add_(1)[0]

    assert peak_bytes(run) == MIB


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_growth_sees_what_is_freed_again():
    def run():
        torch.ones(64 * MIB, dtype=torch.uint8)

    assert 60 * MIB < peak_growth_bytes(run) < 80 * MIB


@pytest.mark.parametrize(
    ("growths", "believed"),
    [([25], 25), ([400, 30], 30), ([400, 300, 31], 31), ([400, 300, 900], 34), ([90, 92, 91], 90)],
    ids=["one that can be", "the second", "the third", "none: the most that can be", "the same each time"],
)
def test_what_other_threads_take_is_not_believed(growths, believed):
    seen = iter(growths)
    assert plausible_bytes(10 * MIB, lambda: next(seen) * MIB) == believed * MIB


def test_a_thread_that_fills_memory_beside_the_run_does_not_count():
    filled = []

    def growth():
        filled.append(256 * MIB)
        return sum(filled)

    assert plausible_bytes(MIB, growth) == 7 * MIB
