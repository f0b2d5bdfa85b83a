"""Labelled points of a board's way. Production passes them by; a test may end the process at any of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Failpoint(StrEnum):
    """The points, in the order in which a board passes them."""

    VIEW_RECEIVED = "view received"  # a picture came whole, and is not on the disk yet
    VIEW_KEPT = "view kept"  # a picture is on the disk, and no row knows it
    VIEW_COMMITTED = "view committed"  # a picture has its row, and the client was not told
    BOARD_CHECKED = "board checked"  # a board was found in order, inside the transaction that accepts it
    BOARD_ACCEPTED = "board accepted"  # a board was accepted, and the client was not told
    LOCATING = "locating"  # the line has counted an attempt, and looks for the components of a whole board
    LOCATED = "located"  # a board is located, and its turn has not come
    BOARD_BEGUN = "board begun"  # the line has begun a board, and handed no picture to the experts
    SUBMITTED = "submitted"  # a picture was handed to the experts
    FOUND = "found"  # a component has its findings
    DECIDING = "deciding"  # the decision is written, inside the transaction
    DECIDED = "decided"  # the decision is committed
    AMENDED = "amended"  # an amendment is written, inside the transaction
    SINK_TOLD = "sink told"  # another machine has acknowledged a message, and the outbox still holds its event


def _pass(point: Failpoint) -> None:
    """Do nothing."""


hook: Callable[[Failpoint], None] = _pass  # what happens at a point; tests set it


def reached(point: Failpoint) -> None:
    """Say that a point is reached."""
    hook(point)
