"""A whole board whose picture was looked at. Law: each site is an item with its crop, or unseen with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.errors import ImageError, sentence_of
from coe.pictures.picture_file import PictureFile
from coe.placement import BoardPicture, Layout, Site, outline, read_board
from coe.serve.enums import CallReason
from coe.serve.worker.items import NOWHERE, Item, Items, Unseen, Whole, skipped


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """The items of a whole board with its picture, from which crops are cut; it holds tens of megabytes.

    `lost` is the path of the picture if its file is gone.
    """

    items: Items
    is_registered: bool
    lost: Path | None
    picture: BoardPicture | None
    sites: Mapping[str, Site]

    def crop(self, refdes: str) -> NDArray[np.uint8]:
        """Return the crop of an item, (H, W, 3) uint8 BGR; raises ImageError if it cannot be cut."""
        if self.picture is None:
            raise ImageError(f"{refdes} has no crop")
        return self.picture.crop(self.sites[refdes])


def located(whole: Whole, items: Items) -> Located:
    """Read the picture of a board with these `items`, find the board, and say what of it can be inspected.

    Raises nothing for any picture.
    """
    lost = None if whole.path.exists() else whole.path
    try:
        layout = whole.cut.layout
        picture = read_board(PictureFile(whole.path, whole.sha256), layout, "", skip=whole.bad_marks, bits=whole.bits)
        is_registered = picture.location is not None and picture.location.registered
        sites = {site.name: site for site in layout.sites}
        return Located(_items(whole, layout, picture), is_registered, lost, picture, sites)
    except Exception as error:  # one picture must not stop the line
        reason = sentence_of(error, during="the board was located")
        failed = [
            Unseen(item.refdes, item.component, CallReason.FAILED, reason, whole.view_id, NOWHERE)
            for item in items.seen
        ]
        return Located(Items([], [*failed, *items.unseen], reason), False, lost, None, {})


def _items(whole: Whole, layout: Layout, picture: BoardPicture) -> Items:
    location = picture.location
    bad = dict.fromkeys(whole.bad_marks, "it was named as bad") | dict(location.skipped if location else {})
    seen: list[Item] = []
    unseen: list[Unseen] = []
    for unit, why in bad.items():
        place = _place(picture, [site for site in layout.sites if site.unit == unit], whole.bits)
        unseen.append(skipped(unit, why, whole.view_id, place))
    for site in layout.sites:
        if site.unit in bad:
            continue
        refusal, place = picture.refusal(site), _place(picture, [site], whole.bits)
        if refusal is None:
            seen.append(Item(site.name, site.component, whole.view_id, None, place))
        elif refusal.failure is not None:
            reason, detail = CallReason.FAILED, refusal.failure.reason
            unseen.append(Unseen(site.name, site.component, reason, detail, whole.view_id, place))
        else:
            is_registered = location is not None and location.registered
            reason = CallReason.OUTSIDE if is_registered else CallReason.NOT_REGISTERED
            detail = refusal.findings[0].doubt
            unseen.append(Unseen(site.name, site.component, reason, detail, whole.view_id, place))
    return Items(seen, unseen, _reason(picture))


def _reason(picture: BoardPicture) -> str:
    """Return why the whole board must be reviewed; "" if it is registered."""
    if picture.location is None:
        return picture.why
    return "" if picture.location.registered else f"not registered: {picture.location.why}"


def _place(picture: BoardPicture, sites: Sequence[Site], bits: int | None) -> Any:
    """Return where a crop lies in the picture, or the rectangle around several, as JSON."""
    fit = picture.location.fit if picture.location is not None else None
    if fit is None or picture.rgb is None:
        return NOWHERE
    height, width = picture.rgb.shape[:2]
    corners = np.concatenate([outline(site, fit, width, height).corners for site in sites])
    size = {"size": [sites[0].crop.width_px, sites[0].crop.height_px]} if len(sites) == 1 else {}
    counted = {} if bits is None else {"bits": bits}
    if len(sites) > 1:
        (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
        corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    # Finer than a warp places its pixels, so that a crop can be cut again as it was.
    return {"polygon": [[round(float(x), 2), round(float(y), 2)] for x, y in corners], **size, **counted}
