"""What repeats itself fits its reference after several motions: none of them hides a defect in silence."""

from collections import Counter

import cv2
import numpy as np
import pytest
from contact_rows import case_of

from coe.comparing.comparison import compare
from coe.comparing.motion import OPENING

LEAST = 32
"""Grey levels: less than any expert calls."""


def says(picture, reference):
    """Return whether a picture is in doubt, differs, or is like its reference."""
    comparison = compare(picture, reference)
    if comparison.difference is None:
        return "doubt" if comparison.alignment is None or comparison.alignment.is_certain else "fits twice"
    lasting = cv2.morphologyEx((comparison.difference > LEAST).astype(np.uint8), cv2.MORPH_OPEN, OPENING)
    return "differs" if cv2.countNonZero(lasting) else "alike"


def counted(seeds, largest=520):
    """Count what is said of bad and of good pictures; with the seeds of the bad ones that are like their reference."""
    said, silent = Counter[str](), list[int]()
    for seed in seeds:
        case = case_of(seed, largest)
        said[f"good, {view(case)}: {says(case.good, case.reference)}"] += 1
        # A contact too much at one end, where the other end is out of view, is what a good part looks like elsewhere.
        if case.shows_defect and (case.shows_all or case.defect == "missing"):
            answer = says(case.bad, case.reference)
            said[f"bad: {answer}"] += 1
            silent += [seed] if answer == "alike" else []
    return said, silent


def view(case):
    return ("in view" if case.shows_all else "cut") + (", turned" if case.turned else "")


def shares(said, view):
    """Return the share of good pictures that fit twice."""
    return said[f"good, {view}: fits twice"] / sum(
        count for name, count in said.items() if name.startswith(f"good, {view}:")
    )


def test_no_contact_is_missing_bent_or_too_much_in_silence():
    said, silent = counted(range(150))
    assert not silent
    assert said["bad: differs"] > said["bad: fits twice"] > 0
    assert shares(said, "in view") == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("thousand", range(7))
def test_of_5000_defects_none_passes_in_silence(thousand):
    first = 1000 * (thousand + 1)
    said, silent = counted(range(first, first + 1000))
    assert not silent
    assert sum(count for name, count in said.items() if name.startswith("bad")) > 715
    assert shares(said, "in view") <= 0.002
    assert shares(said, "in view, turned") <= 0.02
