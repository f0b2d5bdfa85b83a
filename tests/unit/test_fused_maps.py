"""Maps of a frozen EfficientNet on a CPU, whose convolutions add and activate too: they are those of timm's network."""

from __future__ import annotations

import pytest
import torch

from coe.core import Expert
from coe.prepare.fold import fold, network
from experts import fused_maps
from experts.probe_patch import probe_patch

EXPERT = Expert("u1", "probe-patch", ("bad", "ok"), 64, "b/u1", frozenset({"bad"}))
STAGES = (0, 1, 4)


@pytest.fixture(scope="module")
def folded() -> torch.nn.Module:
    torch.manual_seed(3)
    state = probe_patch.skeleton(EXPERT).state_dict()
    found = fold(probe_patch, EXPERT, state)
    backbone: torch.nn.Module = network(probe_patch, EXPERT, found.state, found.pairs).backbone  # type: ignore[assignment]
    return backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("side", [64, 72, 104])  # in 72 and 104 sides of maps become odd
def test_they_are_those_of_timm(folded: torch.nn.Module, side: int, traced: bool) -> None:
    images = torch.rand(2, 3, side, side).contiguous(memory_format=torch.channels_last)
    assert fused_maps.can_fuse(folded, images)

    def maps(seen: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(fused_maps.maps(folded, seen, STAGES))

    with torch.inference_mode():
        expected = folded.forward_intermediates(images, indices=list(STAGES), intermediates_only=True)  # type: ignore[operator]
        found = (torch.jit.trace(maps, (images,)) if traced else maps)(images)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def test_norms_and_other_networks_are_left_to_timm(folded: torch.nn.Module) -> None:
    images = torch.rand(1, 3, 64, 64)
    assert not fused_maps.can_fuse(probe_patch.skeleton(EXPERT).backbone, images)  # type: ignore[arg-type]
    assert not fused_maps.can_fuse(folded, images.bfloat16())
    assert not fused_maps.can_fuse(torch.nn.Conv2d(3, 4, 1), images)
