"""The form of a label: the rules, the import and the training use the same check."""

from __future__ import annotations

from collections.abc import Sequence

from coe.core import NOTHING
from coe.spelling import composed

MOST, LONGEST = 1000, 100


def fault(labels: Sequence[object]) -> str | None:
    """Return what is wrong with the labels of an expert, as the end of a sentence; None if nothing is."""
    if len(labels) > MOST:
        return f"{len(labels):,} labels are more than {MOST:,}"
    for index, label in enumerate(labels):
        if not isinstance(label, str):
            return f"a label is a word, not {label!r:.40}"
        if not label.strip():
            return "a label is empty"
        if label != label.strip():
            return f"label {label!r:.60} begins or ends with a space"
        if len(label) > LONGEST:
            return f"label '{label[:40]}...' has {len(label):,} characters, more than {LONGEST}"
        if not label.isprintable():
            return f"label {label!r:.60} has characters that cannot be shown"
        if label == NOTHING:
            return f"'{NOTHING}' is reserved for a detector that sees nothing"
        if composed(label) in map(composed, map(str, labels[:index])):
            return f"label '{label}' stands twice"
    return None
