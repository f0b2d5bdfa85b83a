"""How large the tuples of a pickle become, before it is unpickled."""

from __future__ import annotations

import pickletools
from typing import Any

_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"}
_FETCH = {"GET", "BINGET", "LONG_BINGET"}
_KEEP = {"PUT", "BINPUT", "LONG_BINPUT"}


class TupleSizes:
    """Follows the steps of one pickle (`pickletools.genops`) by the sizes of what lies on the unpickler's stack.

    A tuple can hold another tuple twice, which holds a third tuple twice, and so on. Forty such steps make a key of a
    dictionary whose hash takes for ever, in a call that no Ctrl-C ends. A smaller key that is used often does the same.
    """

    def __init__(self) -> None:
        self._stack: list[int | None] = []  # None is a mark
        self._memo: dict[int, int] = {}

    def take(self, step: pickletools.OpcodeInfo, argument: Any) -> int:
        """Follow a step; return the number of values in what it makes or fetches, with tuples written out.

        Raises IndexError for an impossible step.
        """
        if step.name == "MARK":
            self._stack.append(None)
            return 1
        if step.name in _FETCH:
            size = self._memo.get(int(argument), 1)
            self._stack.append(size)
            return size
        if step.name in _KEEP or step.name == "MEMOIZE":
            self._memo[len(self._memo) if step.name == "MEMOIZE" else argument] = self._stack[-1] or 1
            return 1
        if step.name == "DUP":
            self._stack.append(self._stack[-1])
            return self._stack[-1] or 1
        members = self._taken(step)
        size = 1 + sum(members) if step.name in _TUPLES else 1
        self._stack.extend(size for _ in step.stack_after)
        return size

    def _taken(self, step: pickletools.OpcodeInfo) -> list[int]:
        """Take from the stack what a step takes; return the sizes."""
        before = list(step.stack_before)
        members: list[int] = []
        if pickletools.markobject in before:
            while (size := self._stack.pop()) is not None:
                members.append(size)
            before = before[: before.index(pickletools.markobject)]
        members += [self._stack.pop() or 1 for _ in before]
        return members
