"""Runs a chosen configuration and the casual one on the machine, with real weights, and keeps the better of the two."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coe import config
from coe.benchmark.engine import Measured, measured_run
from coe.benchmark.recorded import recorded
from coe.benchmark.synthetic import synthetic_pictures
from coe.core import Finding
from coe.inspector import Picture
from coe.profile import BoardProfile, Chosen, Profile
from coe.profiler.tune import CASUAL, Choice
from coe.rules import Rules
from coe.store import MANIFEST, Store

WORSE = 0.02
"""By how much casual must be faster on the machine for the choice to be given up."""

Seen = Sequence[tuple[str, Mapping[str, Finding]]]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What was chosen in the end, and what experts said of the sample images (None if nothing ran)."""

    chosen: Chosen
    seen: Seen | None


def confirm(
    board: Rules,
    store: Store,
    known: Profile,
    choice: Choice,
    *,
    memory_bytes: int,
    pictures: Sequence[Picture],
    images: int,
    say: Callable[[str], None],
) -> Confirmed:
    """Measure a choice and the casual split (one executor, a quarter for batches) on the same images.

    Nothing is run if an expert has no weights; the simulated throughputs stand then, and a reason says so.
    """
    chosen = _chosen(choice)
    missing = [e.id for e in board.experts.values() if not (store.folder(e.weights) / MANIFEST).exists()]
    if missing:
        why = f"not confirmed on the machine: {len(missing)} of {len(board.experts)} experts have no weights"
        say(why)
        return Confirmed(chosen.model_copy(update={"reasons": (*chosen.reasons, why)}), None)
    given = list(pictures) or synthetic_pictures(board.path, images, seed=0)
    shown = [given[index % len(given)] for index in range(images)]
    mean_bytes = sum(store.manifest(e.weights).bytes for e in board.experts.values()) / len(board.experts)
    casual = chosen.model_copy(
        update={
            "executors": {"cpu": 1},
            "threads": {"cpu": os.cpu_count() or 1},
            "workspace_bytes": {"cpu": int(memory_bytes * CASUAL)},
            "loaded_experts": int(memory_bytes * (1 - CASUAL) / mean_bytes),
        }
    )

    def run(one: Chosen) -> Measured:
        entry = BoardProfile(
            board=board.board,
            digest=board.digest,
            memory_bytes=memory_bytes,
            strategy=config.STRATEGY,
            usage=(),
            windows=(),
            executors=(),
            chosen=one,
        )
        return measured_run(
            board.path,
            store,
            shown,
            memory_bytes=memory_bytes,
            executors=None,
            strategy=config.STRATEGY,
            task=board.board,
            order="sample",
            profile=known.model_copy(update={"boards": {board.board: entry}}),
        )

    best, other = run(chosen), run(casual)
    found: dict[str, object] = {
        "images_per_s": best.row.images_per_s,
        "casual_images_per_s": other.row.images_per_s,
        "sample_images": len(shown),
    }
    why = (
        f"measured on {len(shown)} images: {best.row.images_per_s:.1f} images/s, "
        f"{other.row.images_per_s:.1f} with the casual split"
    )
    if other.row.images_per_s > (1 + WORSE) * best.row.images_per_s:
        chosen, found["images_per_s"] = casual, other.row.images_per_s
        why += ", which is therefore used"
    trace = recorded(best.trace)
    seen = [(arrival.request.component, trace.findings.get(arrival.request.id, {})) for arrival in trace.arrivals]
    chosen = chosen.model_copy(update={**found, "reasons": (*chosen.reasons, why)})
    return Confirmed(chosen, seen if pictures else None)


def _chosen(choice: Choice) -> Chosen:
    return Chosen(
        executors=choice.executors,
        threads=choice.threads,
        workspace_bytes=choice.workspace_bytes,
        loaded_experts=choice.loaded,
        images_per_s=choice.images_per_s,
        casual_images_per_s=choice.casual_images_per_s,
        reasons=choice.reasons,
    )
