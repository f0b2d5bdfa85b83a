"""Whether good parts that differ much would hide defects: changes that a person sees are made in pictures of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch

from coe.rates import Rate
from coe.store.kinds import Image
from experts.good_train import Scale
from experts.patch_deviations import LeftOut, Parts, largest_of

_WIDTH = 8
"""The sides of a picture are so many times as long as those of the piece that is pasted."""
_SEEN = 24.0
"""By so many grey levels of a colour a piece differs from what was there, in the mean: a person sees it."""
_TRIED = 16
_SHARE = 0.1
"""With 95 % more than this share passes. 0 of 320 pieces passed in 16 draws of screws, hazelnuts, cookies and figures,
whose defects are found, all in crops of bare boards, and most in rendered parts that differ, where defects passed."""


def passing(
    parts: Parts, judge: LeftOut, scale: Scale, limit: float, seen_of: Callable[[torch.Tensor], torch.Tensor]
) -> Rate | None:
    """Return how many changes of good parts pass, each judged by the others; None of aligned parts, or without any.

    `seen_of` returns the patches (n, G, G, channels) of images (n, 3, S, S).
    """
    if parts.colours is not None:
        return None
    chance = np.random.default_rng(0)
    images = torch.from_numpy(np.stack([_changed(image, chance) for image in parts.images.numpy()]))
    made = (images != parts.images).flatten(1).any(dim=1).numpy()
    if not made.any():
        return None
    seen = seen_of(images)
    deviations = (largest_of(replace(parts, seen=seen), judge.changed(parts.numbers, seen)) - scale.centre)[:, 0]
    return Rate(int((deviations[made] <= limit * scale.deviation[0]).sum()), int(made.sum()))


def remarks(looks: Iterable[Rate | None]) -> list[str]:
    """Return a remark if too much is `passing` in any of the looks of a part; or none."""
    hiding = [rate for rate in looks if rate is not None and rate.lower() > _SHARE]
    if not hiding:
        return []
    passed, made = sum(rate.events for rate in hiding), sum(rate.trials for rate in hiding)
    return [
        f"defects may pass, because good parts differ much or the input is small: of {made} pieces of these pictures, "
        f"an eighth as wide, that were pasted into them where they look otherwise, {passed} would pass; crop closer to "
        "the part, give a larger `--input`, name a `reference:` if the part can be aligned, or learn from bad parts as "
        "well (kind `probe`)"
    ]


def _changed(image: Image, chance: np.random.Generator) -> Image:
    """Return an image (3, S, S) with a turned piece of it where it differs most, of a few tries; or as it is."""
    side = image.shape[1] // _WIDTH
    most, changed = _SEEN, image
    for left, top, to_left, to_top in chance.integers(0, image.shape[1] - side, (_TRIED, 4)):
        piece = np.rot90(image[:, top : top + side, left : left + side], axes=(1, 2))
        into = np.s_[:, to_top : to_top + side, to_left : to_left + side]
        differs = float(np.abs(piece.mean(axis=(1, 2)) - image[into].mean(axis=(1, 2))).max())
        if differs >= most:
            most, changed = differs, image.copy()
            changed[into] = piece
    return changed
