"""What names of folders say of the parts in their pictures: components, labels, and usual words for good and bad."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from coe.core import NOTHING
from coe.errors import did_you_mean, list_few
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


_MOST_NAMED = 6


class Components:
    """The board's components, and the labels of its experts, which may look like dates.

    Each unknown word is compared with them once, not once for each image.
    """

    def __init__(self, components: Collection[str], labels: Collection[str] = ()) -> None:
        self._components, self.labels = frozenset(components), frozenset(labels)
        self._hints: dict[str, str] = {}
        self._folded = {component.casefold(): component for component in sorted(components, reverse=True)}

    def __contains__(self, word: str) -> bool:
        return word in self._components

    def said_by(self, root: str, folders: Sequence[str]) -> tuple[str, str]:
        """Return component ("" if none is named) and label of pictures in folders, one in the other, of one `root`.

        The first folder, or else `root`, names the component; the others are the label, but for dates.
        """
        component, *inner = folders if folders and folders[0] in self else [root, *folders]
        said = [name for name in inner if name in self.labels or not _DATE.fullmatch(letters(name))]
        return component if component in self else "", "/".join(said)

    def spelt(self, text: str) -> str | None:
        """Return the component that a part of a file name names, ignoring upper and lower case; None if none."""
        return text if text in self._components else self._folded.get(text.strip().casefold())

    def fault(self, component: str) -> str:
        """Return what is wrong with what a table calls a component; "" if nothing is."""
        return "" if component in self else self.unknown(component) if component else "the component is empty"

    def unknown(self, word: str) -> str:
        """Return the sentence about a word that is not a component."""
        known = f", which has {list_few(sorted(self._components), _MOST_NAMED)}"
        return f"'{word}' is not a component of the board{self.hint(word) or known}"

    def hint(self, word: str) -> str:
        """Return a question that names a component much like a word; "" if there is none."""
        if word not in self._hints:
            self._hints[word] = did_you_mean(word, self._components)
        return self._hints[word]
