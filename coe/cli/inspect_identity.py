"""What a run of `coe-inspect` is made with, and that it does not change meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import coe
from coe.board import calibration_file
from coe.board.completeness import Expected
from coe.board.parts_list import PlacedPart
from coe.board.rules import Rules
from coe.inspector.line_options import LineOptions
from coe.inspector.weights_used import exam_rows, expert_digests, manifests_of, reference_digests, usable_variants
from coe.placement.board_layout import Layout
from coe.results.run_file import RunIdentity, RunUsed, UsedVersion
from coe.store.manifest import Manifest
from coe.store.reference_reader import ReferenceReader
from coe.store.store_reader import StoreReader


def identity_of(
    board: Rules,
    options: LineOptions,
    manifests: Mapping[str, Manifest],
    images_at: Path,
    layout: Layout | None,
    expected: Expected | None,
    bits: int | None,
) -> RunIdentity:
    """Return what must be the same for a run to go on."""
    return RunIdentity(
        board.board,
        board.digest,
        str(images_at),
        options.strategy.name,
        options.precision,
        options.label_floor,
        expert_digests(board, manifests, options.precision),
        reference_digests(board, options.store),
        layout.digest if layout is not None else "",
        expected.digest if expected is not None and layout is None else "",
        bits,
    )


def used_of(
    board: Rules, manifests: Mapping[str, Manifest], store: StoreReader, parts: Sequence[PlacedPart] = ()
) -> RunUsed:
    """Return what a run is made with; `parts` are those that are asked for, if it is known."""
    references = [ReferenceReader(store).manifest(id) for id in reference_digests(board, store)]
    return RunUsed(
        str(board.path),
        board.path.read_text(encoding="utf-8", errors="replace"),
        (calibration_file.content(board.path) or b"").decode(errors="replace"),
        tuple(UsedVersion(m.id, m.version, m.checksum, m.created, m.source) for _, m in sorted(manifests.items())),
        tuple(UsedVersion(f"references/{m.id}", m.version, m.checksum, m.created, m.source) for m in references),
        coe.__version__,
        exam_rows(board, manifests, parts),
    )


def variants_of(
    board: Rules, options: LineOptions, manifests: Mapping[str, Manifest], identity: RunIdentity
) -> Callable[[Collection[str]], Collection[str]]:
    """Return a function that gives the variants for devices, once nothing has changed since the identity was made."""

    def variants(devices: Collection[str]) -> Collection[str]:
        experts = expert_digests(board, manifests_of(board, options.store), options.precision)
        identity.refuse_changes(board.path, experts, reference_digests(board, options.store))
        return usable_variants(board, manifests, options.precision, options.label_floor, devices)

    return variants
