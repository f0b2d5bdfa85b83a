"""What the names of folders say of the parts in their pictures: labels, and usual words for good and bad."""

from __future__ import annotations

import re
from collections.abc import Collection

from coe.core import NOTHING

GOOD = frozenset(
    {
        *(NOTHING, "good", "goodparts", "gut", "gutteile", "io", "ok", "okay", "pass", "passed", "normal", "nodefect"),
        *("nodefects", "defectfree", "nondefective", "withoutdefect", "noerror", "noerrors", "nofault", "undamaged"),
        *("intact", "healthy", "accept", "accepted", "acceptable", "approved", "correct", "conform", "konform"),
        *("fehlerfrei", "inordnung", "bon", "bons", "bonne", "bonnes", "conforme", "conformes", "buono", "buoni"),
        *("bueno", "buenos", "bom", "correcto", "correctos", "aprobado", "aprovado", "dobry", "dobre", "dobré"),
        *("хорошие", "хорошо", "годен", "годные", "годное", "исправные", "норма", "양품", "정상", "양호", "합격"),
        *("良品", "良", "合格", "合格品", "正常", "正常品", "好", "好品", "ok品", "ok件"),
    }
)
"""Usual names of folders with good parts, by their `letters`."""
BAD = frozenset(
    {
        *("bad", "badparts", "defect", "defects", "defective", "fail", "failed", "faulty", "ng", "nio", "notok", "nok"),
        *("notgood", "nogood", "reject", "rejected", "rejects", "schlecht", "schlechtteile", "ausschuss"),
        *("nichtio", "nichtok", "nichtgut", "nichtinordnung", "fehlerhaft", "mauvais", "nonconforme", "defectueux"),
        *("difettoso", "difettosi", "malo", "malos", "defectuoso", "wadliwy", "vadný", "брак", "негоден", "дефект"),
        *("불량", "불량품", "불합격", "不良", "不良品", "不合格", "不合格品", "不良件", "ng品", "ng件"),
    }
)
"""Usual names of folders with bad parts, by their `letters`."""
_UNDECIDED = frozenset(
    {
        *(
            "unsorted",
            "unsortiert",
            "unlabeled",
            "unlabelled",
            "unknown",
            "unbekannt",
            "undecided",
            "unclear",
            "unklar",
        ),
        *("unchecked", "unverified", "tosort", "todo", "sortme", "new", "neu", "inbox", "incoming", "raw", "all"),
        *("alle", "images", "photos", "pictures", "bilder", "fotos", "tmp", "temp", "review", "maybe", "train"),
        *("val", "valid", "validation", "test", "testing"),
    }
)
"""Names of folders of which nobody knows whether their parts are good, by their `letters`."""
_FILLERS = frozenset(
    {"parts", "part", "teile", "new", "neu", "old", "alt", "copy", "kopie", "more", "photos", "images"}
)
_SPEAKING = GOOD - {NOTHING, "io"}
_DENYING = frozenset({"not", "no", "non", "none", "nicht", "kein", "keine", "nie", "ne", "не", "pas", "bad", "ng"})
"""Words of a name which may mean the opposite of a word for good in it."""

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
