"""Starting a training from weights of which only a part fits."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from coe.errors import ConfigError


def load_matching(module: torch.nn.Module, path: Path) -> int:
    """Copy the tensors of a safetensors file whose name and shape fit into `module`; return how many fit.

    The module's other tensors, such as the head for another number of labels, keep their fresh values. Raises
    ConfigError if the file cannot be read or nothing fits.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"'{path}' cannot be read as safetensors ({error}); give the weights of an expert") from error
    state = module.state_dict()
    fitting = {name: value for name, value in tensors.items() if name in state and state[name].shape == value.shape}
    if not fitting:
        raise ConfigError(f"'{path}' holds no tensor that fits this kind; was it made for another kind?")
    module.load_state_dict(fitting, strict=False)
    return len(fitting)
