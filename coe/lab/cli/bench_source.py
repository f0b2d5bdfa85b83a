"""The input of `coe-bench run`: a board with its experts and pictures, or a synthetic board with pictures of noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coe import config
from coe.board import rules
from coe.cli.common import err
from coe.cli.options import refuse
from coe.core import FULL
from coe.errors import ConfigError
from coe.lab.cli.bench_ways import CONFIGURED, EAGER

if TYPE_CHECKING:
    from coe.inspector.inspector import Picture
    from coe.lab.workloads.picture_forms import PictureForm
    from coe.store.store import Store
    from coe.store.store_reader import StoreReader


def check_source(context: typer.Context, board: str | None, images_at: Path | None, names: Sequence[str]) -> None:
    """Refuse options that have no effect; raises ConfigError."""
    no_effect = partial(refuse, context, by_default=False)
    if board is None:
        no_effect("images_at store", "has no effect, because --board is not given")
    else:
        no_effect("experts kind files input_size work", "has no effect, because --board is given")
    if images_at is not None:
        no_effect("seed", "has no effect, because --images are given")
    configured = [name for name in names if name in CONFIGURED]
    if not configured:
        no_effect("profile_at", f"has no effect, because neither {' nor '.join(CONFIGURED)} is run")
    if configured == list(names):
        no_effect("executors", f"has no effect, because {' and '.join(configured)} set the executors")


def check_host_only(host_only: bool, names: Sequence[str], executors: str, *, with_prediction: bool) -> None:
    """Raise ConfigError for options that cannot go with --host-only."""
    if not host_only:
        return
    if eager := [name for name in names if name.endswith(EAGER)]:
        raise ConfigError(f"--host-only leaves out what differs in '{eager[0]}'; run '{eager[0].removesuffix(EAGER)}'")
    if other := [device for device in config.parse_executors(executors) if device != "cpu"]:
        raise ConfigError(f"--host-only stands for any device; write --executors cpu=1, not '{other[0]}'")
    if with_prediction:
        raise ConfigError("--predict has no effect with --host-only, whose devices take no time; leave it out")


def given(
    board: str, images_at: Path | None, store: StoreReader, requests: int, seed: int, form: PictureForm | None
) -> tuple[Path, StoreReader, list[Picture]]:
    """Return a board's file and store, and `requests` pictures: those given, repeated as needed, or noise."""
    from coe.cli.tool_options import pictures_of
    from coe.lab.workloads.picture_forms import PictureForm, handed_in
    from coe.lab.workloads.synthetic import synthetic_pictures

    loaded = rules.load(board)
    if images_at is None:
        return loaded.path, store, synthetic_pictures(loaded.path, requests, seed, form or PictureForm.ARRAY)
    pictures = handed_in(pictures_of(loaded, images_at), form)
    return loaded.path, store, [pictures[index % len(pictures)] for index in range(requests)]


def variants(executors: str, precisions: Sequence[str]) -> list[str]:
    """Return the variants to prepare for these executors; none if all experts run in fp32."""
    if set(precisions) == {FULL}:
        return []
    devices = config.parse_executors(executors)
    own = [*(("int8",) if "cpu" in devices else ()), *(("fp16", "q8") if any(map(config.is_gpu, devices)) else ())]
    return ["fp32", *own]


def synthetic_experts(
    work: Path,
    kind: str,
    experts: int,
    input_size: int,
    seed: int,
    files: int | None,
    variants: Sequence[str],
    allow_kinds: Sequence[str],
) -> tuple[Path, Store]:
    """Make a board of experts with random weights, or reuse an earlier one; return its file and store."""
    from coe.lab.workloads.synthetic import prepare, synthetic_board

    err.print(f"making {experts} synthetic {kind} experts in {work} (kept for the next time)")
    path, store = synthetic_board(
        work, kind=kind, experts=experts, input_size=input_size, seed=seed, files=files, allow_kinds=allow_kinds
    )
    if variants:
        prepare(path, store, variants, err.print, allow_kinds)  # type: ignore[arg-type]
    return path, store
