"""A drawn whole board for tests of the service, and what the line finds on it."""

import functools
import hashlib
import io
import json
from dataclasses import replace

import cv2
import drawn_boards
import numpy as np
from drawn_boards import PARTS, Pose, draw, truth
from PIL import Image
from quick_line import QuickDevice
from serve_rows import decide
from serving import activated, put
from tiny_line import TINY

from coe.core import Verdict
from coe.placement import outline
from coe.serve.database.board_rows import GoodComponent
from coe.serve.database.tables import NewCall
from coe.serve.enums import CallReason
from coe.serve.recipe_content import WholeBoard
from coe.serve.worker.locating import locate
from coe.serve.worker.verdicts import Item, Items, Whole

POSE = Pose(turn_deg=2, x_px=9, y_px=-6)


def whole_of(parts=PARTS, **changes):
    """Return `whole` of a recipe that cuts the drawn board."""
    return {"parts": drawn_boards.table(parts), "recipe": drawn_boards.recipe(**changes)}


def layout_of(whole):
    return WholeBoard.model_validate(whole).layout


def picture_of(layout, light, pose=POSE):
    """Draw a board on which the experts find good what is `light`."""
    picture, (fit, width, height) = draw(layout, pose), truth(layout, pose)
    for site in layout.sites:
        corners = np.round(outline(site, fit, width, height).corners).astype(np.int32)
        if site.name in light:
            cv2.fillPoly(picture, [corners], (255, 120, 40))
    return picture


def png(pixels):
    return _png(pixels.shape, pixels.tobytes())


@functools.lru_cache(16)
def _png(shape, pixels):
    file = io.BytesIO()
    Image.fromarray(np.frombuffer(pixels, np.uint8).reshape(shape)).save(file, "png", compress_level=1)
    return file.getvalue()


WHOLE = whole_of()


BOARD = picture_of(layout_of(WHOLE), ["P1", "P2"])


class RedDevice(QuickDevice):
    """Looks at the red of a picture alone, so that channels in a wrong order change what it finds."""

    def run(self, executor, pool, expert, images):
        return super().run(executor, pool, expert, [replace(image, pixels=image.pixels[:1]) for image in images])


COMPARING = TINY.replace("{count: 5,", "{count: 5, reference: A,")


def found(path):
    layout = layout_of(WHOLE)
    path.write_bytes(png(BOARD))
    digest = hashlib.sha256(png(BOARD)).hexdigest()
    items = Items([Item(site.name, site.component, 1, None) for site in layout.sites], [])
    return locate(Whole(1, path, WholeBoard.model_validate(WHOLE), (), digest), items)


def places(board):
    return {item.refdes: json.loads(json.dumps(item.place)) for item in board.items.seen}


def with_call(served, board, refdes, component, **taken):
    """Decide two whole boards: all parts of the first are good, one of the second is called.

    `taken` goes into the finding.
    """
    activated(served.database, COMPARING, name="whole", whole=WHOLE)
    at = places(board)
    for key in ("k1", "k2"):
        put(served.feeder, key, "top", png(BOARD))
        assert served.feeder.post(f"/api/v1/boards/{key}", json={"recipe": "whole", "whole": "top"}).status_code == 202
    decide(served.database, "k1", fine=[GoodComponent(refdes, component, 1, at[refdes], [])])
    boxes = [{"expert": "joint", "label": "bridge", "score": 0.9, "boxes": [{"xyxy": [1, 2, 3, 4]}], **taken}]
    call = NewCall(refdes, component, Verdict.NG, CallReason.EXPERT, view_id=2, place=at[refdes], findings=boxes)
    decide(served.database, "k2", call, fine=[])
