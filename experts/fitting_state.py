"""A foreign state dict as exactly the tensors of a kind's network, or the tensor that does not fit."""

from __future__ import annotations

import torch

from coe.core import Expert
from coe.errors import StoreError, list_few
from coe.store.blob_format import optional_of
from coe.store.kinds import ModuleKind
from coe.store.skeletons import bare_skeleton

_ANOTHER_WAY = "is it another kind? Any network can be exported as ONNX and imported with --kind onnx"


def _counts(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def _way_out(given: torch.Tensor, wanted: torch.Tensor, labels: int) -> str:
    """Say what to do about a tensor of another shape: of the last layer, of the first, or of one between them."""
    if given.shape[1:] == wanted.shape[1:] and len(wanted) == labels:
        if len(given) == 1:
            return "it has one output for two labels; export it as ONNX and import that with --activation sigmoid"
        return f"it has {len(given)} outputs; give as many labels, in their order"
    if given.dim() == wanted.dim() == 4 and wanted.shape[1] == 3 != given.shape[1]:
        if given.shape[1] == 1:
            return "it takes grey, one channel; export it as ONNX, and import that with --kind onnx"
        return (
            f"it takes {given.shape[1]} channels; export it as ONNX with a first layer that computes them from red, "
            "green and blue, and import that with --kind onnx"
        )
    return _ANOTHER_WAY


def fitted(kind: ModuleKind, state: dict[str, torch.Tensor], expert: Expert) -> dict[str, torch.Tensor]:
    """Return exactly the tensors of the kind's skeleton, taken from `state`; missing batch counters become 0.

    Names may begin with the `module.` of a parallel training.
    Raises StoreError that names the first tensor that is missing, surplus, or of another shape or type, and how many
    are missing or surplus.
    """
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    wanted = bare_skeleton(kind, expert, optional=optional_of(state)).state_dict()
    wrong = [f"has no tensor '{name}'" for name in state if name not in wanted]
    wrong += [
        f"needs a tensor '{name}', which the file lacks" for name in wanted if name not in state and not _counts(name)
    ]
    if wrong:
        raise StoreError(f"weights of '{expert.id}': {kind.name} {list_few(wrong, 1, '; ')}; {_ANOTHER_WAY}")
    result: dict[str, torch.Tensor] = {}
    for name, tensor in wanted.items():
        if _counts(name):  # nothing is computed with it, and half precision rounds it
            kept = state.get(name)
            is_sound = kept is not None and (kept.dtype, kept.shape) == (tensor.dtype, tensor.shape)
            result[name] = kept.detach() if kept is not None and is_sound else torch.zeros_like(tensor)
        elif state[name].shape != tensor.shape:
            raise StoreError(
                f"weights of '{expert.id}': '{name}' is {tuple(state[name].shape)}, {kind.name} with "
                f"{len(expert.labels)} labels needs {tuple(tensor.shape)}: "
                f"{_way_out(state[name], tensor, len(expert.labels))}"
            )
        elif state[name].is_floating_point() != tensor.is_floating_point():
            actual, needed = (str(value.dtype).removeprefix("torch.") for value in (state[name], tensor))
            raise StoreError(f"weights of '{expert.id}': '{name}' holds {actual}, {kind.name} needs {needed}")
        else:
            result[name] = state[name].detach().to(tensor.dtype).contiguous()
    return result
