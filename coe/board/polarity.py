"""Which parts have a polarity, so that one that is turned by 180 degrees is a defect: by refdes and package."""

from __future__ import annotations

import re

_REFDES = frozenset({"d", "vd", "cr", "led", "u", "ic", "q", "vt"})
"""Letters of reference designators (IEEE 315) of diodes, LEDs, ICs and transistors."""
_PACKAGES = re.compile(
    r"led|diode|transistor|opto[a-z]*|photocoupler|ics?|cpu|mcu"
    r"|sot|sod|sm[abc]|do|to|d2?pak"  # packages of diodes and transistors
    r"|[a-z]{0,3}(so|soic|sop|soj|qfp|qfn|dfn|bga|dip|plcc)"  # packages of ICs, as TSSOP, LQFP, PDIP
    r"|cp|ce|ct|cpol|elko|elec|elcap|electrolytic|tant|tantal|tantalum|polarised|polarized"  # polarised capacitors
)
"""Words of packages and of names of components."""


def is_known(component: str, refdes: str = "") -> bool:
    """Tell whether a part has a polarity by the table, from the name of its component, or its reference designator.

    A name is taken in runs of letters, in any case: `CP_Elec_4x5.3` holds `cp` and `elec`. Its first run may be the
    letters of a reference designator, as in `D-LED` and `U7`.
    """
    words = re.findall(r"[a-z]+", component.lower())
    letters = re.match(r"[a-z]*", refdes.rpartition("/")[2].lower())
    return (
        (letters is not None and letters[0] in _REFDES)
        or bool(words[:1] and words[0] in _REFDES)
        or any(map(_PACKAGES.fullmatch, words))
    )
