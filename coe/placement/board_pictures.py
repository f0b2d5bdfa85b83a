"""Pictures of whole boards become pictures of components. Each site of a board has one crop or one result.

A board is read, located and cut when its turn comes; one picture at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from coe.core import FULL, Failure, FailureKind, Finding, Request, Result, Verdict
from coe.errors import ImageError
from coe.pictures.array_images import DecodedImage, Order, ordered
from coe.pictures.image_source import ImageLike, ImageSource, Picture
from coe.placement.board_layout import Layout, Site
from coe.placement.board_view import LOCATION_STEP, BoardView
from coe.placement.crops import crop, outline
from coe.placement.location import Location, locate
from coe.placement.serial_code import read_serials


@dataclass(frozen=True, slots=True)
class BoardPicture:
    """A picture of a whole board, or of a panel, that was looked for fiducials.

    `name` is that of the picture in the results, `serials` the serial of each unit. `location` and `rgb`, the pixels
    (H, W, 3) uint8 RGB, are None if the picture cannot be read; `why` then is the reason, of this `kind`. `unread` says
    of units why their serial could not be read.
    """

    layout: Layout
    name: str
    serials: Mapping[str, str]
    rgb: DecodedImage | None = field(repr=False)
    location: Location | None
    why: str = ""
    kind: FailureKind = FailureKind.IMAGE
    unread: Mapping[str, str] = field(default_factory=dict)

    def pictures(self, names: Iterable[str] | None = None, within_s: float | None = None) -> Iterator[Picture]:
        """Yield the crop of each component that can be inspected, upright and in BGR, in the order of the layout.

        `names`, of images in the results, are those that are wanted (None: all). Each crop is cut when it is asked for.
        """
        for site in self._sites(names):
            if self.refusal(site) is None:
                place = (site.component, self.serials[site.unit], site.refdes, self.name_of(site))
                yield Picture(self.crop(site), *place, within_s=within_s)

    def results(self, names: Iterable[str] | None = None) -> Iterator[Result]:
        """Yield the result of each component that cannot be inspected; together with `pictures` each has exactly one.

        A picture that cannot be read is an error for each component. A board that is not registered, or whose serial is
        not known, and a crop that lies partly outside of the picture, are REVIEW with the reason as a doubt. A unit
        that is skipped has a failure of the kind SKIPPED, and is never OK.
        """
        for site in self._sites(names):
            if (refusal := self.refusal(site)) is not None:
                yield refusal

    def _sites(self, names: Iterable[str] | None) -> Iterable[Site]:
        if names is None:
            return self.layout.sites
        wanted = set(names)
        return [site for site in self.layout.sites if self.name_of(site) in wanted]

    def refusal(self, site: Site) -> Result | None:
        """Return the result of a component that cannot be inspected; None if it can."""
        request = Request(-1, site.component, self.name_of(site), self.serials[site.unit], site.refdes)
        if self.location is None or self.rgb is None:
            return Result(request, None, (), 0.0, Failure(self.kind, self.why))
        if site.unit in self.location.skipped:
            why = f"unit '{site.unit}' is skipped: {self.location.skipped[site.unit]}"
            return Result(request, None, (), 0.0, Failure(FailureKind.SKIPPED, why))
        if self.location.fit is None:
            label, doubt = "not registered", f"the board is not registered: {self.location.why}"
        elif site.unit in self.unread:
            label, doubt = "no serial", self.unread[site.unit]
        else:
            height, width = self.rgb.shape[:2]
            outside_px = outline(site, self.location.fit, width, height).outside_px
            if not outside_px:
                return None
            label, doubt = "outside", f"its crop lies {outside_px:.0f} pixels outside of the picture"
        return Result(request, Verdict.REVIEW, (Finding(LOCATION_STEP, FULL, label, 0.0, doubt=doubt),), 0.0)

    def crop(self, site: Site, order: Order = "BGR") -> DecodedImage:
        """Return the crop of a component, (h, w, 3) uint8 in `order`; raises ImageError if it has none."""
        if self.rgb is not None and self.location is not None and self.location.fit is not None:
            cut = crop(self.rgb, site, self.location.fit)
            if cut is not None:
                return ordered(cut, order)
        raise ImageError(f"{self.name_of(site)} has no crop")

    def view(self, serial: str) -> BoardView | None:
        """Return the board with a serial as a page shows it; None if the picture cannot be read."""
        if self.rgb is None or self.location is None:
            return None
        if self.location.fit is None:
            return BoardView(self.rgb, {}, f"not registered: {self.location.why}")
        height, width = self.rgb.shape[:2]
        crops = {
            self.name_of(site): outline(site, self.location.fit, width, height).corners
            for site in self.layout.sites
            if self.serials[site.unit] == serial
        }
        corners = np.concatenate(list(crops.values()))
        around = 0.05 * float(max(width, height))
        left, top = (max(0, int(least - around)) for least in corners.min(axis=0))
        right, bottom = (int(most + around) + 1 for most in corners.max(axis=0))
        shown = self.rgb[top : max(bottom, top + 1), left : max(right, left + 1)]
        note = next((why for unit, why in self.location.skipped.items() if self.serials[unit] == serial), "")
        return BoardView(shown, {name: at - (left, top) for name, at in crops.items()}, note and f"skipped: {note}")

    def name_of(self, site: Site) -> str:
        """Return the name of a component's image in the results."""
        return f"{self.name}/{site.name}"


def read_board(
    image: ImageLike,
    layout: Layout,
    serial: str,
    *,
    name: str = "",
    serials: Mapping[str, str] | None = None,
    skip: Iterable[str] = (),
    order: Order | None = None,
    bits: int | None = None,
) -> BoardPicture:
    """Read and locate a picture of a whole board, in the forms that `Inspector.submit` takes.

    An array's colours are BGR unless `order` says "RGB"; `bits` of 16-bit samples count, as for `Inspector.submit`.
    `name` is the name of the picture in the results (default: the serial). The units of a panel have the serials
    `<serial>-<unit>`, or those that `serials` gives. If the recipe has a code, that says the serial of the others, and
    `serial` is the name of a board whose code cannot be read. `skip` names units that are known to be bad. A picture
    that cannot be read is no error here: each of its components gets a result that says so. Raises ValueError for a
    unit that the layout does not have.
    """
    if unknown := sorted(set(serials or {}) - set(layout.units)):
        raise ValueError(f"the layout has no unit '{unknown[0]}'")
    of_units = {unit: (serials or {}).get(unit, serial_of(serial, unit)) for unit in layout.units}
    try:
        pixels = ImageSource.of(image, order, bits).decode()
    except ImageError as error:
        why, kind = f"the picture of the board {error}", FailureKind.of(error, FailureKind.IMAGE)
        return BoardPicture(layout, name or serial, of_units, None, None, why, kind)
    picture = BoardPicture(layout, name or serial, of_units, pixels, locate(pixels, layout, skip))
    return _with_serials(picture, frozenset(serials or ()))


def _with_serials(picture: BoardPicture, known: frozenset[str]) -> BoardPicture:
    """Return a picture with the serials that its codes say; the units that are `known` keep theirs."""
    layout, location, rgb = picture.layout, picture.location, picture.rgb
    if layout.recipe.serial is None or location is None or location.fit is None or rgb is None:
        return picture
    places = {unit: site for unit, site in layout.codes.items() if unit not in known and unit not in location.skipped}
    read = read_serials({unit: crop(rgb, site, location.fit) for unit, site in places.items()}, layout.recipe.serial)
    serials, unread = dict(picture.serials), dict(read.unread)
    for unit in layout.units:
        of_panel = "" in places and unit not in known
        if of_panel and "" in read.serials:
            serials[unit] = serial_of(read.serials[""], unit)
        elif of_panel and "" in read.unread:
            unread[unit] = read.unread[""]
        elif unit in read.serials:
            serials[unit] = read.serials[unit]
    return replace(picture, serials=serials, unread=unread)


def serial_of(serial: str, unit: str) -> str:
    """Return the serial of a unit of a panel with a serial."""
    return f"{serial}-{unit}" if unit else serial
