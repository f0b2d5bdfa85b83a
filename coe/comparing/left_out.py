"""How many pictures of good parts may be left out: the same for a reference and for each kind that learns from them.

A few bad pictures among many are left out and named. What most pictures do not agree with is no norm: then the picture
that was taken for the others' frame may be the odd one, or the part has no fixed place.
"""

from __future__ import annotations

from collections.abc import Mapping

from coe.errors import ConfigError

MOST = 0.5
"""The largest share that may be left out."""
WITHOUT_REFERENCE = (
    "if the part lies differently in each picture, use kind `patch`, which needs no reference; if good parts have "
    "several looks, such as those of two suppliers, name a reference of each: `reference: [A, B]`"
)
"""What to do about parts that do not fit each other."""


def check(kept: int, left_out: Mapping[str, str]) -> None:
    """Raise ConfigError if more than half of the pictures would be left out; `left_out` holds the reasons by name."""
    number = kept + len(left_out)
    if len(left_out) > MOST * number:
        name, reason = next(iter(left_out.items()))
        raise ConfigError(
            f"only {kept} of {number} pictures of good parts agree ({name}: {reason}, ...); {WITHOUT_REFERENCE}"
        )
