"""Checks before an expert goes into the store: sound labels, weights that fit, and a network that runs on them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from coe.board.board_spec import label_fault
from coe.core import NOTHING, Expert
from coe.errors import ConfigError, StoreError
from coe.helpers.plugins import running
from coe.store import torch_file
from coe.store.kinds import Image, Kind, ModuleKind, Session
from coe.variants.agreement import findings
from coe.variants.fold import network


def check_labels(expert: Expert) -> None:
    """Raise ConfigError for labels that the rules would refuse."""
    if not expert.labels:
        raise ConfigError(f"the labels of '{expert.id}' are not known; give --labels in the order of its outputs")
    if wrong := label_fault(expert.labels):
        raise ConfigError(f"expert '{expert.id}': {wrong}")


def check_module(kind: ModuleKind, expert: Expert, state: Mapping[str, torch.Tensor]) -> None:
    """Run one grey image through the network with these weights; raises ConfigError, StoreError."""
    check_labels(expert)
    if kind.task == "classify" and len(expert.labels) == 1:
        raise ConfigError(f"a classifier with the single label '{expert.labels[0]}' cannot decide; give it two labels")
    torch_file.check_tensors(f"weights of '{expert.id}'", state)
    with running("kind", expert.kind, f"run with the weights of '{expert.id}'"):
        module = network(kind, expert, state)

        def answer(pixels: Image) -> object:
            with torch.inference_mode():
                return kind.forward(module, torch.from_numpy(np.ascontiguousarray(pixels)))

        _check_findings(kind, expert, answer)


def check_session(kind: Kind, expert: Expert, session: Session) -> None:
    """Run one grey image through an open file; raises ConfigError, StoreError."""
    check_labels(expert)
    with running("kind", expert.kind, f"run with the weights of '{expert.id}'"):
        _check_findings(kind, expert, session.run)


def _check_findings(kind: Kind, expert: Expert, answer: object) -> None:
    grey = np.full((expert.input_size, expert.input_size, 3), 127, np.uint8)
    results = findings(kind, expert, [kind.preprocess(grey, expert)], answer)  # type: ignore[arg-type]
    if len(results) != 1:
        raise StoreError(f"kind '{expert.kind}' gives {len(results)} findings for one image")
    if results[0].label not in (*expert.labels, NOTHING):
        raise StoreError(f"weights of '{expert.id}': they say '{results[0].label:.60}', which is not one of its labels")
    if not math.isfinite(results[0].score):
        raise StoreError(f"weights of '{expert.id}': their scores are not numbers")
