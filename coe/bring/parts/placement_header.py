"""The header of a placement file or a BOM: the line that names its columns, whatever stands between them."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from coe.bring.parts.text_table import TextLine, fault
from coe.bring.parts.vocabulary import UNIT_WORDS, one_word

SEPARATORS = (",", ";", "\t", "!", "|", None)
"""What may stand between cells; None means spaces."""
Names: TypeAlias = list[tuple[str, int]]
"""The names of a line, and where each begins."""
_MOST_JOINED = 8  # lines of one row of names, by line breaks in them
_OPEN = re.compile(r'(?:^|[,;\t|])\s*"(?:[^"]|"")*$')  # the end of a line whose last cell goes on in the next one
_DIGIT = re.compile(r"\d")
_QUALIFIER = re.compile(
    "^(?:component|comp|part|placement|place|mount(?:ing|ed)?|assembly|board|pcb|smt|symbol|sym|circuit|schematic)"
)
_ASIAN = re.compile("[\u1100-\u11ff\u2e80-\u9fff]+")
_QUALIFIED = ("refdes", "x", "y", "rotation", "side")
FURTHER_NUMBERS = frozenset({"refx", "refy", "padx", "pady", "height"})
"""Columns that hold numbers, and that nobody needs, as `one_word` has them."""


@dataclass(frozen=True, slots=True)
class PlacementHeader:
    """The columns of a file: their names, where each begins in its line, and which of them each field has.

    `separator` is None for spaces; `number` is the line of the header, 0 without one.
    """

    number: int
    separator: str | None
    names: tuple[str, ...]
    starts: tuple[int, ...]
    columns: Mapping[str, int]
    width: int = 0
    """How many cells the line of the header has, with those that are empty."""

    @property
    def is_fixed_width(self) -> bool:
        """Whether the names of a header between spaces stand as far from each other as columns of one width do."""
        pairs = zip(self.starts, self.names, self.starts[1:], strict=False)
        return any(start + len(name) + 1 < following for start, name, following in pairs)

    @property
    def unused(self) -> tuple[str, ...]:
        """The names of the columns that no field has."""
        return tuple(name for index, name in enumerate(self.names) if name and index not in self.columns.values())


def find_header(
    lines: Iterable[TextLine], names: Mapping[str, Sequence[str]], needs: Collection[str]
) -> PlacementHeader | None:
    """Return the first line that has a column for each field of `needs`; None if no line has."""
    return next(find_headers(lines, names, needs), None)


def find_headers(
    lines: Iterable[TextLine], names: Mapping[str, Sequence[str]], needs: Collection[str], one_of: Collection[str] = ()
) -> Iterator[PlacementHeader]:
    """Yield the lines that have a column for each field of `needs`, and for a field of `one_of`, if any is given."""
    known_of = {field: [one_word(name) for name in of_field] for field, of_field in names.items()}
    known = {name for of_field in known_of.values() for name in of_field} | FURTHER_NUMBERS
    last = -1
    for number, separator, words in _readings([*lines], known):
        if len(words) < len(needs) + bool(one_of):
            continue
        bare = _unqualified([_in_one_language(one_word(word), known) for word, _ in words], known_of, known)
        if number == last or sum(word in known for word in bare) < len(needs):
            continue  # as most lines; to look for each name would take long
        columns = _columns(bare, known_of, needs_pair=separator is None and "x" in known_of)
        if {*needs} <= columns.keys() and (not one_of or {*one_of} & columns.keys()):
            width = len(words)
            while words and not words[-1][0]:
                words.pop()
            cells, starts = zip(*words, strict=True)
            yield PlacementHeader(number, separator, cells, starts, columns, width)
            last = number


def _readings(lines: Sequence[TextLine], known: Collection[str]) -> Iterator[tuple[int, str | None, Names]]:
    """Yield the number of each line and its names, as each separator divides it.

    A line that names columns is then read below the line before it, which may name groups of them. One that ends
    within a cell in quotes is first read with the lines in which that cell goes on; its number is that of the last.
    """
    ways = (*((separator, known) for separator in SEPARATORS), (None, ()))
    for at, line in enumerate(lines):
        whole = line
        following = iter(lines[at + 1 : at + _MOST_JOINED])
        while _OPEN.search(whole.text) and (further := next(following, None)):
            whole = TextLine(further.number, f"{whole.text} {further.text}")
        for one in dict.fromkeys((whole, line)):
            for separator, joinable in ways if one is line else ways[:-2]:
                if separator is not None and separator not in one.text:
                    continue  # one cell is no header
                words = _words(one, separator, joinable)
                if at + 1 < len(lines) and len(words) > len({word for word, _ in words}):
                    yield lines[at + 1].number, separator, _with_units(words, lines[at + 1], separator)
                yield one.number, separator, words
                if at and separator is not None and any(one_word(word) in known for word, _ in words):
                    yield one.number, separator, _below_groups(_words(lines[at - 1], separator, ()), words)


def _with_units(words: Names, below: TextLine, separator: str | None) -> Names:
    """Return names, of which some stand twice, with the units in the line below them; none if it holds others."""
    units = {at: (unit.strip("()[]. "), start) for at, (unit, start) in enumerate(_words(below, separator, ())) if unit}
    if len(units) < 4 or any(unit.casefold() not in UNIT_WORDS for unit, _ in units.values()):
        return []
    named = list(words)
    for at, (unit, start) in units.items():
        nearest = min(range(len(words)), key=lambda one: abs(words[one][1] - start)) if separator is None else at
        if nearest < len(words):
            named[nearest] = (f"{words[nearest][0]} [{unit}]", words[nearest][1])
    return named


def _below_groups(groups: Names, words: Names) -> Names:
    """Return the names of a header of two rows, below the name of each group or column; none if they are no such rows.

    A name is that of the group where the row below has none, and stands behind it where that row has a name twice.
    """
    lower = [word for word, _ in words]
    if len(groups) != len(lower) or any(re.search(r"\d", name) for name in lower):
        return []
    names, group = [], ""
    for (above, _), below in zip(groups, lower, strict=True):
        group = above or group
        unit = re.search(r"[(\[][^)\]]*[)\]]$", above)
        name = below if lower.count(below) == 1 or not below else f"{group} {below}"
        names.append((f"{name} {unit[0]}" if name and unit else name or above, 0))
    return names


def _in_one_language(name: str, known: Collection[str]) -> str:
    """Return a name; of one in two languages (`Comment型号`) what is known in it, but for a letter, as X."""
    latin = _ASIAN.sub("", name)
    return latin if len(latin) > 2 and latin in known and name not in known else name


def _unqualified(bare: list[str], known_of: Mapping[str, Sequence[str]], known: Collection[str]) -> list[str]:
    """Return names; of one that is not known, as Board X, what is known in it, unless another name says it as well.

    So Part Rotation is none beside Rot, nor beside Board Rotation; Part Center X is one beside X, its origin.
    """
    cores = ["" if name in known else _QUALIFIER.sub("", name) for name in bare]
    if not any(core in known and core != name for core, name in zip(cores, bare, strict=True)):
        return bare
    fields = {field: {*known_of.get(field, ())} for field in _QUALIFIED}
    fields["refdes"] = {name for name in fields["refdes"] if "ref" in name or "des" in name}
    taken = {*bare}.union(*(names for field, names in fields.items() if field not in "xy" and names & {*bare}))
    may_be = {core for core in set().union(*fields.values()) - taken if cores.count(core) == 1}
    return [core if core in may_be else name for name, core in zip(bare, cores, strict=True)]


def _columns(bare: list[str], known_of: Mapping[str, Sequence[str]], *, needs_pair: bool) -> dict[str, int]:
    """Return the column of each field of which a name is there; none is that of two fields.

    Between spaces, Ref X beside Y is two names, and so both axes need names of one form.
    """
    # The names of both axes stand in one order: x of the middle and y of pin 1 are no place.
    pairs = zip(known_of.get("x", ()), known_of.get("y", ()), strict=False)
    pair = next((pair for pair in pairs if {*pair} <= {*bare}), ())
    if needs_pair and not pair:
        return {}
    columns: dict[str, int] = {}
    for field, of_field in {**known_of, **dict(zip("xy", ([name] for name in pair), strict=False))}.items():
        if chosen := next((name for name in of_field if name in bare), None):
            columns[field] = bare.index(chosen)
            bare[columns[field]] = ""
    return columns


def expect_one_order(
    path: Path,
    lines: Sequence[TextLine],
    header: PlacementHeader,
    names: Mapping[str, Sequence[str]],
    needs: Collection[str],
    one_of: Collection[str] = (),
) -> None:
    """Raise ConfigError for a further header whose columns stand in another order; a row of a part has a digit."""
    below = [line for line in lines if line.number > header.number and not _DIGIT.search(line.text)]
    others = [
        other.number
        for other in (find_headers(below, names, needs, one_of) if header.number else ())
        if any(header.columns.get(field, at) != at for field, at in other.columns.items())
    ]
    if others:
        raise fault(path, others, "another table begins, whose columns have another order; give each table a file")


def lines_below(lines: Sequence[TextLine], header: PlacementHeader) -> list[TextLine]:
    """Return the lines below a header without those that repeat it, as on a new page or above a second table."""
    names = next((line.text.split() for line in lines if line.number == header.number), [])
    return [line for line in lines if line.number > header.number and line.text.split() != names]


def _words(line: TextLine, separator: str | None, known: Collection[str]) -> Names:
    """Return the names of a line; between spaces, names of several words are those that are `known`."""
    prefix = re.match(r"#[#\s]*|\s*fields\s*:\s*", line.text, re.IGNORECASE)
    shift = prefix.end() if prefix else 0
    text = line.text[shift:]
    if separator is not None:
        return [(cell.strip(), 0) for cell in next(csv.reader([text], delimiter=separator, skipinitialspace=True), [])]
    words = [(match[0].strip('"'), match.start() + shift) for match in re.finditer(r'"[^"]*"|\S+', text)]
    joined: Names = []
    while words:
        names = {size: " ".join(word for word, _ in words[:size]) for size in (3, 2)}
        size = next((size for size, name in names.items() if one_word(name) in known and name in text), 1)
        joined.append((names.get(size, words[0][0]), words[0][1]))
        words = words[size:]
    return joined
