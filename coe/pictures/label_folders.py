"""What the names of folders say of the parts in their pictures: labels, and usual words for good and bad."""

from __future__ import annotations

import re
from collections.abc import Collection

from coe.core import NOTHING
from coe.helpers.strict_yaml import word_lists

_WORDS = {name: frozenset(words) for name, words in word_lists(__file__).items()}
GOOD, BAD = _WORDS["good"] | {NOTHING}, _WORDS["bad"]
"""Usual names of folders with good parts, and with bad ones, by their `letters`."""
_UNDECIDED, _FILLERS, _DENYING = (_WORDS[name] for name in ("undecided", "fillers", "denying"))
_SPEAKING = GOOD - {NOTHING, "io"}
TO_CHOOSE = ("val", "validation", "valid")
"""Names of the pictures that choose the best epoch; the last is Roboflow's."""
_DATE = re.compile(r"\d{6,}")


def letters(name: str) -> str:
    """Return the name of a folder without case and without what stands between its words."""
    return re.sub(r"[-_. ]", "", name.casefold())


def spelling(label: str) -> str:
    """Return a label without case, and with one sign between its words.

    Numbers and single characters stay, as 4.7 and 47, -90 and 90, a and A.
    """
    return re.sub("[-_ ]+", "_", label.casefold()) if re.match(r"[^\W\d_].", label) else label


def words(folders: Collection[str], labels: Collection[str]) -> tuple[str, ...]:
    """Return the names of folders without dates, unless a date is one of the labels."""
    return tuple(name for name in folders if name in labels or not _DATE.fullmatch(letters(name)))


def says_label(name: str, labels: Collection[str]) -> bool:
    """Tell whether the name of a folder is a label, or a word for good or bad, or a date."""
    return name in labels or letters(name) in GOOD | BAD or _DATE.fullmatch(letters(name)) is not None


def is_undecided(name: str) -> bool:
    """Tell whether the name of a folder, which is no label, leaves open whether its parts are good.

    Such are unsorted, good2, and ok_front, as the other words may say what is wrong.
    """
    if letters(name) in GOOD | BAD:
        return False
    everything = set(re.findall(r"[^\W\d_]+", name.casefold()))
    joined = re.sub("(parts|images|photos|pictures|teile|图片|画像)$", "", letters(name))
    if joined in _SPEAKING or ("/" not in name and everything & _SPEAKING and not everything & _DENYING):
        return True
    said = [word for word in re.findall(r"[^\W\d_]+", name.casefold()) if word not in _FILLERS]
    return letters(name) in _UNDECIDED or not said or "".join(said) in GOOD | _UNDECIDED
