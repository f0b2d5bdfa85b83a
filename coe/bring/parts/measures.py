"""Numbers, units, sides and angles in placement files: what cells say, and what a whole file says of them."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coe.board.parts_list import Side
from coe.bring.parts import vocabulary
from coe.bring.parts.answers import Answers
from coe.bring.parts.placement_header import PlacementHeader
from coe.bring.parts.placement_rows import SPACED_THOUSANDS
from coe.bring.parts.text_table import TextLine, fault
from coe.bring.parts.vocabulary import UNIT_WORDS, Units, one_word, plain
from coe.errors import ConfigError

_NUMBER = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
    r"""([A-Za-z\u00b0\u00ba\u00b5\u03bcм]*|"|\u2033|'')"""
)
_POINT_THOUSANDS = re.compile(r"([+-]?\d{1,3}(?:\.\d{3})+),(\d+.*)")
_COMMA_THOUSANDS = re.compile(r"([+-]?\d{1,3}(?:,\d{3})+)\.(\d+.*)")
_SPACED_THOUSANDS = re.compile(rf"(?<![\d.,]){SPACED_THOUSANDS}(?!\d)")
_MINUS = str.maketrans("\u2212\u2013", "--")


class CellNumber(NamedTuple):
    """A number, and the word for its unit, which may be empty."""

    value: float
    unit: str


def number_of(text: str, *, has_comma: bool) -> CellNumber | None:
    """Return the number of a cell; None if it is none. With `has_comma`, a comma stands before the fraction."""
    text = _SPACED_THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text.translate(_MINUS), count=1)
    if thousands := (_POINT_THOUSANDS if has_comma else _COMMA_THOUSANDS).fullmatch(text):
        text = f"{re.sub('[.,]', '', thousands[1])}.{thousands[2]}"
    elif has_comma:
        text = text.replace(",", ".", 1)
    match = _NUMBER.fullmatch(text)
    return CellNumber(float(match[1]), match[2]) if match and math.isfinite(float(match[1])) else None


def has_decimal_commas(path: Path, numbers: Sequence[str], form: Answers, unit: Units | None) -> bool:
    """Tell whether a file writes 12,5, by its numbers or as a person says; raises ConfigError if both may be.

    Some numbers then have a comma before the fraction, and none has a point there. A number such as "100 200" is
    doubted if the file writes no others so.
    """
    doubtful = [number for number in numbers if re.fullmatch(r"[+-]?\d{1,3} \d{3}", number)]
    spaced = [number for number in numbers if _SPACED_THOUSANDS.search(number)]
    if doubtful and (len(spaced) == 1 or any(re.match(r"[+-]?\d{4}", number) for number in numbers)):
        raise ConfigError(f"{path}: '{doubtful[0]}' may be one number or two; write it without a space")
    if form.decimal is not None:
        return form.decimal == "comma"
    commas = [number for number in numbers if "," in number]
    # 1,181.102 has a comma for thousands, and the points of the file stand before fractions.
    has_points = any("." in number and not _POINT_THOUSANDS.fullmatch(number) for number in numbers)
    if not commas or has_points or any(map(_COMMA_THOUSANDS.fullmatch, numbers)):
        return False
    is_sure = any(re.match(r"[+-]?(?:0|\d{4,}),", number) for number in commas)  # thousands stand by three
    if unit is not Units.MM and not is_sure and all(re.search(r",\d{3}(?!\s*mm)\D*$", number) for number in commas):
        raise ConfigError(
            f"{path}: '{commas[0]}' may have a decimal comma or separate thousands; export it with decimal "
            "points, or write `decimal: comma` in answers.yaml"
        )
    return True


# Units


_SPELLED = "|".join(sorted(word for word in {*UNIT_WORDS, "cm"} if len(word) > 1 and word not in ("in", "''")))
_NOUNS = "u?units?|einheit(?:en)?|unit[eé]s?|unidad(?:es)?|unit[aà]|jednostk[ai]|jednotk[ay]|единиц\\w*|单位|單位|単位"
_STATED = re.compile(
    rf"^[#*;/\s\"]*(?:(?:{_NOUNS})(?:\s+used)?\s*(?:[:=\uff1a]|[\",;\t|]+(?=\s*\"?(?:{_SPELLED}|in|cm)\W*$))|x\s*,\s*y\s+in\s|"
    r"(?:all\s+|alle\s+|все\s+)?(?:co-?ordinates|dimensions|measure(?:ment)?s|positions|units|values|koordinaten|maße|angaben|координаты|размеры)"
    rf"(?:\s+are)?(?:\s+given)?\s+(?:in|в)\s(?=.*\b(?:{_SPELLED})\b))(.*)",  # else it is "in this file"
    re.IGNORECASE,
)
_IN_NAME = re.compile(
    rf"[(\[]\s*((?:\d[\d./e^*+×-]*)?\s*[a-zµμм]{{2,}}|[\"\u2033])\.?\s*[)\]]$|{vocabulary.UNIT_BEHIND}$", re.IGNORECASE
)


class PlacementUnits:
    """The one unit of a file: `known` is that which a person gave, else the first that the file states."""

    def __init__(self, path: Path, given: Units | None) -> None:
        self._path, self.known, self._stated = path, given, ""

    def state(self, word: str, where: str, number: int) -> None:
        """Note that the file states a unit; raises ConfigError for another than is known."""
        unit = UNIT_WORDS.get(word.casefold())
        if unit is None:
            raise fault(self._path, [number], f"the file states '{word}' as its unit; export it in mm, um, mil or inch")
        if self.known not in (None, unit):
            before = f"stated in {self._stated}" if self._stated else "given"
            what = f"the file states '{word}' as its unit, but {self.known} was {before}; export it with one unit"
            raise fault(self._path, [number], what)
        self.known, self._stated = unit, self._stated or where

    def agreed(self) -> tuple[Units, str]:
        """Return the unit, and the sentence that says where the file states it, "" if it does not; or ConfigError."""
        if self.known is None:
            raise ConfigError(f"{self._path}: the file does not say its unit; choose mm, um, mil or inch (--units)")
        return self.known, f"{self.known}, as {self._stated} states" if self._stated else ""


def unit_remarks(lines: Sequence[TextLine]) -> dict[int, str]:
    """Return the words for units in remarks, as "# Units used = mm", by the number of their line."""
    return {line.number: _unit_word(match[1]) for line in lines if (match := _STATED.match(line.text))}


def unit_in_name(name: str) -> str:
    """Return the word for a unit in the name of a column, as X (mm) or X_mm; "" if there is none."""
    stated = _IN_NAME.search(name) or _IN_NAME.search(unicodedata.normalize("NFKC", name))  # that parts \u2033 in two
    return (stated[1] or stated[2]) if stated else ""


def _unit_word(text: str) -> str:
    """Return the word for a unit in a remark such as "Rotation - degrees, X, Y - thou"; its first word without one."""
    if (share := re.search(r"([\d./]*\d)\s*([a-zµμ]+)", text, re.IGNORECASE)) and share[1] not in ("1", "1.0"):
        return share[0]  # as 0.1 mil, which is no unit here
    words: list[str] = re.findall(r"[^\W\d_]+", text)
    # "in" is one if it comes first and there is no other, because it is a word of sentences too.
    units = [word for word in words if word.casefold() in UNIT_WORDS and word.casefold() != "in"]
    return (units or words or [text])[0]


# Sides: by a column, by the name of the file, or as a person says


_LIKE_A_SIDE = re.compile(
    "side|layer|mirror|face|bottom|flip|seite|spiegel|miroir|espej|specch|зеркал|镜", re.IGNORECASE
)
_OTHER_WORDS = ("comp", "solder", "alt")
"""Words for sides that names of files, as solder-station.csv, and columns may have for another reason."""
_OF_FEEDERS = ("front", "back")  # Words for sides that columns may have of the feeders of a machine
_MOST_TOLD = 5


class PlacementSides:
    """What tells the sides in one file."""

    def __init__(self, path: Path, form: Answers) -> None:
        self._path, self._form = path, form
        self._words = {**vocabulary.SIDES, **{word.casefold(): side for word, side in form.sides.items()}}
        self._found: int | None = None
        self.has_mirrored = False
        """Whether the rotations say which parts are mirrored, and so lie on the bottom side, as Eagle writes them."""

    def words(self, header: PlacementHeader) -> Mapping[str, Side]:
        """Return the words for the sides in the column of a header: those of a mirror, if it says that alone."""
        index = header.columns.get("side")
        is_mirror = index is not None and one_word(header.names[index]) in vocabulary.MIRRORED
        return vocabulary.MIRRORS if is_mirror and not (self._form.columns or self._form.sides) else self._words

    def columns(self, header: PlacementHeader, rows: Sequence[Sequence[str]]) -> Mapping[str, int]:
        """Return the columns of fields; one without a known name is that of sides if it alone has words for them only.

        Example: `Bestückseite` with `oben` and `unten`. The name of the file must not say otherwise.
        """
        if "side" in header.columns or self.has_mirrored or self._form.side is not None:
            return header.columns
        others = (*_OTHER_WORDS, *_OF_FEEDERS)
        known = {word: side for word, side in self._words.items() if len(word) > 2 and word not in others}
        found: list[int] = []
        for index in {*range(len(header.names))} - {*header.columns.values()}:
            words = {row[index].casefold() if index < len(row) else "" for row in rows}
            if words and words <= known.keys() and self._told() <= {known[word] for word in words}:
                found.append(index)
        if len(found) != 1:
            return header.columns
        self._found = found[0]
        return {**header.columns, "side": found[0]}

    def of(self, number: int, cells: Mapping[str, str], row: Sequence[str], header: PlacementHeader) -> Side:
        """Return the side of a part in line `number`; raises ConfigError if neither the file nor its name tells it."""
        if self._found is not None:
            return self._words[row[self._found].casefold()]
        if "side" not in header.columns:
            if self.has_mirrored:
                return Side.BOTTOM if cells["rotation"].startswith("M") else Side.TOP
            return self._by_name(header)
        sides, word = self.words(header), cells.get("side", "")
        bare = plain(word) if re.search(r"[^\W\d_]", word) else word  # -1 is not 1
        side = sides.get(word.casefold(), sides.get(bare))
        if side is not None:
            return side
        # The sides that words of a text name, as that of Top Overlay, and of SMT top.
        said = {one for one in re.split(r"[^a-z]+", word.casefold()) if one in ("top", "bottom", "bot")}
        told = {self._words[one] for one in said & self._words.keys()}
        if len(told) == 1:
            return told.pop()
        known = ", ".join([*filter(None, sides)][:_MOST_TOLD])
        own = f'; state which side it is, `sides: {{"{word}": top}}`, in answers.yaml'
        own = "" if sides is vocabulary.MIRRORS else own
        raise fault(self._path, [number], f"{cells['refdes']}: '{word}' is not a side; known: {known} ...{own}")

    def _by_name(self, header: PlacementHeader) -> Side:
        """Return the side that the name of the file tells, as board.mnt or board-bottom.csv; raises ConfigError."""
        if other := next((name for name in header.unused if _LIKE_A_SIDE.search(name)), None):
            what = f"the column '{other}' may give the sides; rename it to Side, or remove it"
            raise fault(self._path, [header.number], what)
        told = self._told()
        if len(told) == 1:
            return told.pop()
        known = ", ".join(f"{ending} ({side})" for ending, side in vocabulary.ENDINGS.items())
        raise ConfigError(
            f"{self._path}: no column gives the side of a part; end the file name in {known}, put -top or -bottom "
            f"into it, or write `side: top` in answers.yaml"
        )

    def other_words(self) -> set[str]:
        """Return the words for sides that neither a person nor the name of the file has told."""
        told = self._told()
        return {word for word, side in self._words.items() if told != {side}}

    def _told(self) -> set[Side]:
        """Return the side that a person said, or those that the ending or words in the name of the file are."""
        if self._form.side is not None:
            return {self._form.side}
        if (ending := self._path.suffix.lower()) in vocabulary.ENDINGS:
            return {vocabulary.ENDINGS[ending]}
        words = re.split(r"[^a-z]+", self._path.name.casefold())
        return {self._words[one] for one in words if len(one) > 1 and one in self._words and one not in _OTHER_WORDS}


# Angles: degrees, counterclockwise, unless words or numbers of the file speak against it


_WIDEST = 720.0
"""Most angles are no wider, unless machines count hundredths of a degree (Fuji, Panasonic), tenths or thousandths."""
_NEARLY = 0.007  # By so much of an eighth turn angles in radians may be rounded, as 1.57
_QUARTERS = {*range(-3, 4)}
_CLOCKWISE = re.compile(r"(counter\W+|anti\W+)?\bclockwise|\bim uhrzeigersinn", re.IGNORECASE)


def expect_counterclockwise(path: Path, form: Answers, header: PlacementHeader, above: Sequence[TextLine]) -> None:
    """Raise ConfigError for a column of other units, or of angles that grow clockwise where nobody has said so."""
    name = header.names[header.columns["rotation"]]
    if re.search(r"[(\[]\s*(rad|0?[.,]0*1|1/10+)", name, re.IGNORECASE):
        raise fault(path, [header.number], f"the column '{name}' is not in degrees; export it in degrees")
    said = [line.number for line in above if any(not found[1] for found in _CLOCKWISE.finditer(line.text))]
    if re.search(r"[(\[]\s*(cw|clockwise)\b", name, re.IGNORECASE):
        said = [header.number]
    if said and not form.clockwise:
        what = f"the angles of the column '{name}' grow clockwise; write `clockwise: true` into answers.yaml, or "
        raise fault(path, said[:1], f"{what}remove that word")


def expect_degrees(path: Path, form: Answers, column: str, turns: Mapping[int, tuple[str, CellNumber]]) -> None:
    """Raise ConfigError for angles, by line, that are parts of a degree, radians or quarter turns, unless said."""
    values = {number: turn.value for number, (_, turn) in turns.items()}
    turned = [number for number, value in values.items() if value]
    is_said, says_so = form.angles is not None, "write `angles: degrees` in answers.yaml"
    over = [number for number in turned if abs(values[number]) > 360]
    # Some few parts may be turned several times.
    are_wide = 2 * sum(abs(value) > _WIDEST for value in values.values()) > len(turned)
    if are_wide or (not is_said and turned and turned == over):
        what = f"the rotation is {values[over[0]]:g}, probably in fractions of a degree; export it in degrees"
        raise fault(path, over, f"{what}{'' if are_wide else f', or {says_so}'}")
    eighths = [values[number] / math.radians(45) for number in turned]
    like = [round(one) for one in eighths if round(one) and abs(one - round(one)) < _NEARLY]
    within = max(map(abs, eighths), default=9) < 8 + _NEARLY  # some may be odd, as 30 degrees
    if not is_said and within and 2 * len(like) > len(eighths) and any(one % 2 == 0 for one in like):
        what = f"the rotation is {values[turned[0]]:g}, probably in radians; export it in degrees"
        raise fault(path, turned, f"{what}, or {says_so}")
    far = [number for number in turned if abs(values[number]) > max(_QUARTERS)]
    if form.angles == "quarters" and far:
        what = f"the rotation is {values[far[0]]:g}: not a number of quarter turns; remove `angles: quarters`"
        raise fault(path, far, what)
    # KiCad writes 1.00; one part alone may be turned by so few degrees.
    finely = len(turned) == 1 and any(re.search(r"[.,]\d\d", text) for text, _ in turns.values())
    has_unit = re.search(r"deg|[\u00b0\u00ba]", column, re.IGNORECASE) or any(turn.unit for _, turn in turns.values())
    if not (is_said or finely or has_unit) and turned and {*values.values()} <= _QUARTERS:
        what = (
            "no rotation is above 3, so they may be quarter turns; export them in degrees, or write `angles: quarters`"
        )
        raise fault(path, turned[:1], f"{what} (or `angles: degrees`, if they are) in answers.yaml")
