"""`coe-experts prepare`: makes blobs of weights in each variant, and measures how well each variant agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import typer

from coe.board import rules
from coe.cli.common import Exit, Steps, complain, err, out, point_out, show
from coe.cli.experts_options import WithKinds
from coe.cli.options import Record, Share, argument, option, words_of
from coe.errors import ConfigError, StoreError, did_you_mean, list_few, sentence_of
from coe.helpers.files import DiskFull
from coe.store import bodies
from coe.store.blob_format import Variant
from coe.store.store import Store
from coe.variants.prepare import Preparation, Preparer
from coe.variants.sample_pictures import SamplePictures

KNOWN: tuple[Variant, ...] = get_args(Variant)
USUAL = "fp32,q8"
WITH_PICTURES = f"{USUAL},int8"
"""int8 takes the ranges of its numbers from pictures, so it is usual where there are some."""


LABELLED = "the labelled pictures of its training"


class Prepare(WithKinds):
    """Make files of experts that load fast, one for each precision (variant), and compare the variants with fp32.

    The files (blobs) are added to the expert's folder; its weights file does not change. Exit status 1 if an expert
    could not be prepared, 4 if the disk is full.

    Example: coe-experts prepare --board demo --images build/demo/images
    """

    ids: list[str] | None = argument("Experts, as BOARD/NAME. Default: all that lack a variant.")
    board: str | None = option("Only the experts of this board. Its rules say which of --images each expert sees.")
    variants: str | None = option(
        f"Variants to make, from {', '.join(KNOWN)}. Default: {USUAL}, and with --images also int8."
    )
    images_at: Path | None = option(
        "Sample images on which each variant is compared with fp32. Default: generated images.", None, "--images"
    )
    force: bool = option("Make existing variants again.", False)

    def run(self) -> Record:
        shelf, ids, images_at = self.shelf, self.ids, self.images_at
        wanted = parse((WITH_PICTURES if images_at else USUAL) if self.variants is None else self.variants)
        board = rules.load(self.board) if self.board else None
        bits = board.bits if board else None
        preparer = Preparer(shelf, wanted, force=self.force, allow_kinds=self.allowed, bits=bits)
        stored = shelf.ids()
        of_board = {expert.weights for expert in board.experts.values()} if board else set(stored)
        lacking = {id: _lacks(preparer, id) for id in stored}
        chosen = ids or [id for id in stored if id in of_board and lacking[id]]
        if not stored or (board and not ids and not of_board & set(stored)):
            raise StoreError(f"the store {shelf.root} holds no experts{' of this board' if board else ''}")
        if not chosen:
            out.print("every expert is prepared already; --force prepares them again")
            return Record([])
        pictures = SamplePictures(images_at, board, [*stored, *chosen])
        if pictures.are_mixed and len(chosen) > 1:
            point_out(
                "note",
                f"it is unknown which pictures in {images_at} belong to which expert, so all are used for each; give "
                "--board, or put them into folders named after the experts",
            )
        if images_at is None and self.variants is None:
            point_out("note", "int8 needs pictures of the parts; give them with --images")
        return work(preparer, chosen, pictures.of, asked=self.variants is not None)


def _lacks(preparer: Preparer, id: str) -> bool:
    try:
        return preparer.lacks(id)
    except (Exception, SystemExit):  # a kind is foreign code
        # Its error is shown when its turn comes; the other experts are prepared.
        return True


def prepare_new(
    store: Path | None,
    id: str,
    samples: Sequence[Path] = (),
    source: str = "",
    allow_kinds: Sequence[str] = (),
    *,
    bits: int | None,
) -> None:
    """Prepare an expert that has just come into the store; raises typer.Exit as `prepare` does.

    `source` says in words where the samples are from, and `bits` how many low bits count of those of 16 bits.
    """
    preparer = Preparer(Store(store), parse(WITH_PICTURES), allow_kinds=allow_kinds, bits=bits)
    record = work(preparer, [id], lambda _: (list(samples), source))
    show(record.rows)
    if record.status is not Exit.OK:
        raise typer.Exit(record.status)


def parse(text: str) -> tuple[Variant, ...]:
    """Read a list of variants; raises ConfigError for a word that is not a variant."""
    words = words_of(text) if text.strip() else []
    for word in words:
        if word not in KNOWN:
            raise ConfigError(f"'{word}' is not a variant{did_you_mean(word, KNOWN)}")
    variants = tuple(variant for variant in KNOWN if variant in words)
    if not variants:
        raise ConfigError(f"which variants? known: {', '.join(KNOWN)}")
    return variants


def work(
    preparer: Preparer, ids: Sequence[str], pictures: Callable[[str], tuple[list[Path], str]], *, asked: bool = False
) -> Record:
    """Prepare experts one after another; an error of one expert does not stop the others.

    `pictures` returns the sample images of an expert, and in words where they are from. Unless the variants were
    `asked` for by name, `int8` is a bonus: an expert that cannot have it has not failed.
    """
    rows: list[dict[str, Any]] = []
    failed = 0
    with Steps("preparing", len(ids)) as steps:
        for number, id in enumerate(ids):
            steps.at(number, len(ids), id)
            try:
                outcome = preparer.prepare(id, *pictures(id))
                failed += _tell(id, outcome, asked=asked)
                rows += _rows(outcome)
            except DiskFull:
                show(rows)
                raise
            except (Exception, SystemExit) as error:  # a kind is foreign code, and the others must be prepared
                failed += 1
                complain(f"{id}: {sentence_of(error)}")
    bodies.sweep(preparer.store)
    if failed:
        err.print(f"{failed} of {len(ids)} experts could not be prepared in every variant")
    return Record(rows, Exit.NOT_GOOD if failed else Exit.OK)


def _tell(id: str, outcome: Preparation, *, asked: bool) -> bool:
    """Say what there is to say of an expert; return whether a variant failed that is no bonus."""
    bonus: Sequence[Variant] = () if asked else ("int8",)
    has_int8 = "int8" in outcome.manifest.variants or "int8" in outcome.failed
    if outcome.skipped and (asked or not has_int8):
        err.print(f"{id}: skipped, {outcome.skipped}")
    if faults := outcome.faults:
        point_out("note", f"{id}: unreadable pictures are skipped: {list_few(faults, between='; ')}")
    for variant, reason in outcome.failed.items():
        if variant in bonus:
            point_out("note", f"{id} has no {variant}: {reason}")
        else:
            complain(f"{id} in {variant}: {reason}")
    for variant in outcome.made:
        made_of = outcome.manifest.variants[variant].calibration
        if made_of is not None and made_of.in_float:
            err.print(f"{id} in {variant}: {len(made_of.in_float)} of {made_of.layers} layers stay float")
    return bool(outcome.failed.keys() - set(bonus))


def _rows(outcome: Preparation) -> Iterator[dict[str, Any]]:
    for variant, prepared in outcome.manifest.variants.items():
        agreed = prepared.agreement
        boxes = agreed.boxes_matched if agreed else None
        yield {
            "expert": outcome.manifest.id,
            "variant": variant,
            "MB": round(prepared.bytes / 1e6, 1),
            "labels equal": Share(agreed.labels_equal) if agreed else None,
            "score off by": float(f"{agreed.largest_score_difference:.1g}") if agreed else None,
            "boxes": None if boxes is None else Share(boxes),
            "images": f"{agreed.images}{' generated' if agreed.generated else ''}" if agreed else None,
            "escalate below": round(prepared.escalate_below, 4) or "never",
        }
