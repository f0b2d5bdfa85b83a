"""Images that a box had when it crashed: one of them may have done it.

A suspect is the only suspect on its box, so the next crash names the culprit, which then gets its answer and is
sent to no third box. A suspect that another box could look at is innocent. All other images go on as before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

_CRASHES = 2
"""An image that was on so many boxes as they crashed is sent to no other."""


class SuspectImages:
    """The images under way that were on a box that crashed, by request."""

    def __init__(self) -> None:
        self._crashed: dict[int, list[str]] = {}
        self._holder: dict[str, int] = {}
        """By box: the suspect that it has."""

    def __repr__(self) -> str:
        return f"<Suspects {len(self._crashed)} images, {len(self._holder)} on boxes>"

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._crashed

    def accuse(self, request_ids: Iterable[int], box: str) -> None:
        """Note that a box crashed while it had these images."""
        for request_id in request_ids:
            crashed = self._crashed.setdefault(request_id, [])
            if box not in crashed:
                crashed.append(box)

    def crashed_with(self, request_id: int) -> tuple[str, ...]:
        """Return the boxes that an image is to be blamed for; none as long as it may still be innocent."""
        crashed = self._crashed.get(request_id, ())
        return tuple(crashed) if len(crashed) >= _CRASHES else ()

    def boxes_without_room(self, request_id: int) -> frozenset[str]:
        """Return the boxes that have another suspect."""
        return frozenset(box for box, holder in self._holder.items() if holder != request_id)

    def is_full_on(self, boxes: Collection[str]) -> bool:
        """Tell whether all of these boxes, and at least one, have a suspect."""
        return bool(boxes) and all(box in self._holder for box in boxes)

    def sent(self, request_id: int, box: str) -> None:
        """Note that a suspect goes to a box that has room."""
        assert self._holder.get(box, request_id) == request_id, f"{box} has two suspects"
        self._holder[box] = request_id

    def acquit(self, request_id: int, box: str) -> None:
        """Note that a box has answered a stage; if that was a suspect's turn there, the image is innocent."""
        if self._holder.get(box) == request_id:
            self.answered(request_id)

    def left(self, request_id: int, box: str) -> None:
        """Note that a box has no stage of a suspect any more."""
        if self._holder.get(box) == request_id:
            del self._holder[box]

    def lost(self, box: str) -> None:
        """Note that a box is gone."""
        self._holder.pop(box, None)

    def answered(self, request_id: int) -> None:
        """Forget an image."""
        if self._crashed.pop(request_id, None) is not None:
            self._holder = {box: holder for box, holder in self._holder.items() if holder != request_id}
