"""Outputs that are not finite numbers are an error of that image in every kind, and never `none`."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from golden_parts import bad, noisy, part

from coe.core import Expert
from coe.errors import CoeError, StoreError
from coe.helpers.preprocessing import Outputs
from coe.runtime.runner import findings_of
from coe.store import kinds
from coe.store.kinds import Comparing, ExpertInput, Reference
from coe.store.outputs import prove
from experts.findings import Cut
from experts.onnx import onnx

EXPERTS = {
    kind: Expert("e", kind, labels, size, "e", frozenset(labels[:1]))
    for kind, labels, size in [
        ("golden", ("hole", "blob"), 192),
        ("difference", ("different",), 96),
        ("patch", ("strange",), 64),
        ("resnet18", ("bad", "ok"), 64),
        ("yolov5n", ("bridge", "joint"), 64),
    ]
}
NONSENSE = (math.nan, math.inf, -math.inf)
PLAIN = ExpertInput(np.zeros((3, 64, 64), np.uint8), height=64, width=64)


def network(name):
    """Return a kind, its network with random weights, and a picture of a bad part as it is prepared."""
    kind, expert, reference = kinds.resolve(name), EXPERTS[name], part(1)
    torch.manual_seed(0)
    picture = noisy(bad(reference), seed=2)
    if isinstance(kind, Comparing):
        spread = np.zeros(reference.shape[:2], np.uint8)
        return kind, expert, kind.skeleton(expert), kind.compare(picture, Reference(reference, spread), expert)
    return kind, expert, kind.skeleton(expert), kind.preprocess(picture, expert)


def answer(kind, module, prepared):
    with torch.inference_mode():
        return kind.forward(module, torch.from_numpy(prepared.pixels[None]))


def scores_of(outputs):
    return outputs["scores"] if isinstance(outputs, dict) else outputs


def spoilt(outputs, place, number):
    """Return the outputs with another number at a place of their scores."""
    outputs = copy.deepcopy(outputs)
    scores_of(outputs).view(-1)[place] = number
    return outputs


def is_refused(kind, outputs, prepared, expert):
    try:
        findings_of(kind, outputs, [prepared], expert)
    except CoeError:
        return True
    return False


@pytest.mark.parametrize("name", EXPERTS)
def test_no_number_of_an_output_may_be_none(name):
    kind, expert, module, prepared = network(name)
    outputs, chance = answer(kind, module, prepared), np.random.default_rng(3)
    assert not is_refused(kind, outputs, prepared, expert)
    for number, place in enumerate(chance.integers(0, scores_of(outputs).numel(), 60).tolist()):
        assert is_refused(kind, spoilt(outputs, place, NONSENSE[number % 3]), prepared, expert), place


@pytest.mark.parametrize(("shape", "layout"), [((1, 3), "scores"), ((1, 7, 40), "yolov8"), ((1, 40, 8), "yolov5")])
def test_no_number_of_a_model_file_s_output_may_be_none(shape, layout):
    labels, means = ("bridge", "joint", "lifted"), Outputs(layout=layout)
    expert = Expert("e", "onnx", labels, 64, "e", frozenset({"bridge"}), outputs=means)
    outputs = np.full(shape, 0.1, np.float32)
    assert not is_refused(onnx, outputs, PLAIN, expert)
    for place in range(outputs.size):
        broken = outputs.copy()
        broken.flat[place] = NONSENSE[place % 3]
        assert is_refused(onnx, broken, PLAIN, expert), place


@pytest.mark.parametrize(
    ("name", "tensor", "value"),
    [
        ("golden", "label.bias", -math.inf),
        ("golden", "coarse.1.convolution.weight", math.nan),
        ("difference", "limit", math.inf),
        ("difference", "unit", 0.0),
        ("patch", "limit", math.inf),
        ("resnet18", "fc.bias", -math.inf),
        ("yolov5n", "model.24.cv3.0.2.bias", -math.inf),
    ],
)
def test_no_function_of_a_network_makes_a_score_of_what_is_not_finite(name, tensor, value):
    """A sigmoid of minus infinity is 0: the very score of a good part."""
    kind, expert, module, prepared = network(name)
    with torch.no_grad():
        module.get_parameter(tensor).view(-1)[0] = value
    assert is_refused(kind, answer(kind, module, prepared), prepared, expert)


def test_outputs_are_proved_however_they_are_nested_and_large_numbers_are_numbers():
    great = torch.full((4, 4), 3e38)
    prove({"a": [great, (np.full(3, 1e38, np.float32),)], "b": torch.arange(3), "c": None, "d": "nan"})
    prove(np.full(9, 60_000, np.float16))
    for broken in (torch.tensor([1, math.nan]).bfloat16(), np.array([1, math.inf], np.float16)):
        with pytest.raises(StoreError):
            prove({"a": [great, (broken,)]})


@dataclass
class Answered:
    """Outputs as a kind of one's own may return them."""

    scores: Any


class Foreign:
    """Numbers of another library."""

    def __array__(self, dtype=None, copy=None):
        return np.array([math.nan])


def test_numbers_outside_of_tensors_are_proved_too():
    prove([Answered([0.5, 1, "text", None]), np.float32(2), Answered])
    odd, nested = np.array([math.nan, None], dtype=object), Answered(torch.tensor([math.nan]))
    for outputs in ([[0.5, math.nan]], np.float32(math.inf), nested, odd, {math.nan}, Foreign()):
        with pytest.raises(StoreError):
            prove(outputs)
    with pytest.raises(StoreError):  # a threshold that no score would reach: every picture would be good
        Cut(math.nan, 0.5, 10)
