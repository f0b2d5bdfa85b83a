import pytest
import torch

from apps.parent_difference import (
    SAMPLES,
    Child,
    Encoding,
    Tally,
    Way,
    both,
    cut,
    encoded,
    exact,
    findings,
    low_rank,
    q4,
    q8,
)
from coe.core import Expert, Finding
from coe.prepare.fold import network
from coe.store import kinds
from coe.store.kinds import ModuleKind

MATRIX = torch.randn(48, 300, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("encoding", "expected_bytes", "most_error"),
    [
        (exact, 4 * 48 * 300, 0.0),
        (q8, 113 * 128 + 113 * 2, 0.01),
        (q4(0), 48 * 300 // 2 + 2 * 48, 0.16),
        (q4(32), 48 * 300 // 2 + 2 * 48 * 10, 0.12),
        (low_rank(40, "fp16"), 2 * 40 * 348, 0.3),
    ],
)
def test_an_encoding_comes_back_nearly_and_says_what_it_takes(
    encoding: Encoding, expected_bytes: int, most_error: float
) -> None:
    made = encoding(MATRIX)
    assert made.bytes == expected_bytes
    assert float((made.value - MATRIX).norm() / MATRIX.norm()) <= most_error


def test_a_matrix_of_low_rank_comes_back_from_its_factors() -> None:
    matrix = MATRIX[:, :4] @ MATRIX[:4]
    assert float((low_rank(4, "fp16")(matrix).value - matrix).norm() / matrix.norm()) < 1e-3
    assert low_rank(200, "q8")(matrix).bytes == 4 * matrix.numel()  # factors would take more than the matrix
    rest = both(low_rank(2, "fp16"), exact)(matrix)
    assert torch.allclose(rest.value, matrix, atol=1e-5)


@pytest.fixture
def child() -> Child:
    """An expert whose last block and head differ from its parent's."""
    kind, expert = narrow(), Expert("e", "narrow", ("ok", "bad"), 32, "b/e")
    parent, other = kinds.random_weights(kind, expert, 0), kinds.random_weights(kind, expert, 1)
    state = {name: other[name] if name.startswith(("deep", "fc")) else tensor for name, tensor in parent.items()}
    pixels = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    return Child(expert, parent, state, pixels)


def narrow() -> ModuleKind:
    kind = kinds.resolve("narrow")
    assert isinstance(kind, ModuleKind)
    return kind


def test_only_what_differs_from_the_parent_counts(child: Child) -> None:
    state, own_bytes = encoded(child, Way("fp32", exact))
    assert all(torch.allclose(state[name], child.state[name], atol=1e-6) for name in state)
    own = [tensor for name, tensor in child.state.items() if not torch.equal(tensor, child.parent[name])]
    assert own_bytes == sum(tensor.numel() * tensor.element_size() for tensor in own)
    assert encoded(child, Way("q4", q4(32)))[1] < own_bytes / 4


def test_layers_of_the_parent_run_once_and_the_rest_says_the_same(child: Child) -> None:
    kind = narrow()
    inputs, skipped = cut(kind, child)
    assert skipped
    assert inputs.dtype == torch.float32
    module = network(kind, child.expert, child.state)
    expected = findings(kind, child, module, child.images)
    for name in skipped:
        setattr(module, name, torch.nn.Identity())
    assert findings(kind, child, module, inputs) == expected


def test_a_second_look_replaces_what_is_in_doubt() -> None:
    def said(*answers: tuple[str, float]) -> list[Finding]:
        samples = [Finding("e", "q4", "ok", 0.9, margin=0.8)] * SAMPLES
        return samples + [Finding("e", "q4", label, 0.9, margin=margin) for label, margin in answers]

    tally = Tally()
    exact_ones = said(("ok", 0.9), ("ok", 0.9), ("bad", 0.9))
    exact_ones[0] = Finding("e", "", "ok", 0.9, margin=0.9)  # one sample moved: there is a limit
    tally.add(exact_ones, said(("ok", 0.9), ("bad", 0.01), ("ok", 0.95)))
    assert (tally.images, tally.equal, tally.again, tally.equal_at_last) == (3, 1, 1, 2)
