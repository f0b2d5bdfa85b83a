"""The words by which placement files and bills of materials say that a part is not fitted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coe.errors import list_few

FITTED = (
    *("fitted", "populate", "populated", "placed", "mounted", "mount", "assembly", "assemble", "assembled", "fit"),
    *("install", "installed", "stuff", "stuffed", "exec", "present"),
    *("variation", "bestückt", "bestückung", "bestücken", "monté", "montado", "montato", "zamontowany", "贴装", "実装"),
)
"""The columns that say whether a part is there."""
LEFT_OUT = (
    *("dnp", "dni", "dnf", "do not populate", "do not place", "do not fit", "no stuff", "not fitted", "not mounted"),
    *("exclude from position files", "nicht bestückt", "未実装", "skip", "dns", "do not stuff", "do not mount"),
    *("不贴", "不贴片", "不贴装", "不焊", "不焊接", "不装", "空贴"),
    *("no mount", "nomount", "no pop", "nopop", "not placed", "not populated", "auslassen"),
)
"""The columns that say whether it is not."""
_NO = ("0", "0.0", "n", "no", "false", "nein", "falsch", "non", "faux", "nie", "ne", "нет", "否", "いいえ")
_YES = (
    *("1", "1.0", "t", "x", "y", "yes", "true", "excluded from bom", "ja", "oui", "si", "sí", "sim", "tak", "да", "是"),
    *("はい", "excluded from position files", "wahr", "vrai", "*", "✓", "✔", "√"),
)
_OUT = ("nf", "nm", "np", "skip", "dns", "nomount", "no mount")
"""What leaves a part out in a column of either kind."""
_PLACED = (*FITTED, "ok", "place", "load", "loaded", "soldered", "execute", "no skip", "alternate", "alternate part")
_NOTHING = ("", "-", "--", "n/a", "none")
_SAID = re.compile(
    r"\b(dnp|dni|dnf|dnm|nofit|not (?:fitted|mounted|populated|placed|installed|assembled|stuffed|soldered|loaded)|"
    r"do not (?:populate|place|fit|mount|assemble|install|solder|load|stuff)|no[ -]?stuff|no[ -]?pop|"
    r"no[ -]?load(?! *\w)|un(?:populated|fitted|mounted|placed|stuffed|soldered|assembled)|"
    r"(?:nicht |un)best(?:ü|ue)ck(?:t|en)|entfällt|"
    r"non (?:mont[éeoa]\w*|câblé)|n[oã]o? montar|nie montowa[ćc]|neosa(?:zovat|zeno)|niet (?:plaatsen|bestukken)|"
    r"не (?:устанавливать|монтировать|ставить|запаивать))\b|"
    r"不(?:[贴焊装]|安装|插件|上件)[装片接件]?|空[贴焊]|未(?:[贴焊]|安装|実装|实装)|実装しない|実装なし|미실장",
    re.IGNORECASE,
)
_SAID_ALONE = re.compile(rf"{_SAID.pattern}|omit(?:ted)?|dna|n[./]\s?[bfm]\.?|not used|no place", re.IGNORECASE)
_MARK = re.compile(
    r"(?:(?i:n\.?/?[cp]\.?)|NA)(?:\s*[(/\uff08].*|\s+\d.*)?|\d\S*(?:\s*[(/\uff08]\s*|\s+)(?i:nc)[)\uff09]?"
)
"""What as a value may say that a part is not there, as NC, NP, or NA(10k) of Olimex; 10uF NP is no such word."""
_VALUED = re.compile(r"(?:.*[/_-])?(?:R|R[NAPV]|C|L|FB|D|LED|Q|T|U|IC|F|Z|ZD|VR|TVS|Y)\d", re.IGNORECASE)
"""Parts of which NC is no value, as it is of a switch, nor a name, as of a connector or of a net at a test point."""
_NC = re.compile(r"n[./]?c\.?", re.IGNORECASE)
_OF_NETS = re.compile(r"net|pin|pad|signal|type|part|mpn|package|footprint", re.IGNORECASE)
"""Columns in which NC may be a name, or a code."""
_MOST_TOLD = 3


class FittedRow(NamedTuple):
    """The line of a row, its cells by field, and all its cells."""

    number: int
    cells: Mapping[str, str]
    all_cells: Sequence[str]


@dataclass(frozen=True, slots=True)
class Fitting:
    """What the rows of a file say of whether their parts are fitted, by line; all others are, for all that is known.

    `said` are rows that say in a column for it that their parts are fitted. `asked` is what is wrong with rows of which
    nobody knows; `notes` are sentences on words that are no answer.
    """

    left_out: frozenset[int]
    said: frozenset[int]
    asked: Mapping[int, str]
    notes: tuple[str, ...]


def fitting_of(
    rows: Sequence[FittedRow], names: Sequence[str] = (), columns: Mapping[str, int] | None = None
) -> Fitting:
    """Return what rows say, below the `names` of all their columns, of which `columns` are those of fields."""
    out = frozenset(row.number for row in rows if _is_left_out(row.cells, row.all_cells))
    told = _have_values(row.cells.get("value", "") for row in rows)
    taken = {index for field, index in (columns or {}).items() if field != "package"}  # which may be a description
    open_to_nc = [index for index, name in enumerate(names) if index not in taken and not _OF_NETS.search(name)]
    said, asked, other = set(), dict[int, str](), dict[str, int]()
    are_answers = any(_is_word(row.cells.get("fitted", "").casefold()) for row in rows)
    for number, cells, all_cells in rows:
        fitted, left_out, value = (cells.get(field, "") for field in ("fitted", "left_out", "value"))
        if number in out:
            continue
        if left_out.casefold() not in (*_NOTHING, *_NO, *_PLACED, "f"):
            asked[number] = f"'{left_out}' in a column such as DNP or Skip says neither yes nor no; write one of these"
        elif fitted.casefold() not in _NOTHING and not _is_word(fitted.casefold()):
            if are_answers or _MARK.fullmatch(fitted):
                asked[number] = f"'{fitted}' in a column such as Fitted says neither yes nor no; write one of these"
            else:
                other.setdefault(fitted, number)
        elif fitted or left_out:
            said.add(number)
        elif _VALUED.match(cells.get("refdes", "")):
            remarks = (all_cells[index] for index in open_to_nc if index < len(all_cells))
            marks = [value] if told and _MARK.fullmatch(value) else []
            if mark := next(filter(None, (*marks, *(cell for cell in remarks if _NC.fullmatch(cell)))), ""):
                asked[number] = (
                    f"'{mark}' may say that a part is not fitted; say yes or no in a column DNP of this line"
                )
    few = list_few((f"'{word}'" for word in other), _MOST_TOLD)
    return Fitting(
        out, frozenset(said), asked, (f"{few} in a column such as Fitted leave no part out",) if other else ()
    )


def _is_word(fitted: str) -> bool:
    """Tell whether a word in a column as Fitted says yes or no: as such, as a number, or by how such a word begins."""
    is_short = any(name.startswith(fitted) for name in _PLACED) and not any(
        name.startswith(fitted) for name in (*_OUT, *LEFT_OUT)
    )
    known = (*_YES, *_NO, *_OUT, *_PLACED)
    return bool(fitted) and (fitted in known or is_short or bool(re.fullmatch(r"\d+(?:[.,]0+)?", fitted)))


def _is_left_out(cells: Mapping[str, str], row: Iterable[str]) -> bool:
    """Tell whether a row leaves its part out: by its cells by field, or by one of all its cells, which says only so."""
    fitted = cells.get("fitted", "")
    said = (fitted, *(cells.get(field, "") for field in ("left_out", "value", "config")))
    return (
        cells.get("quantity", "").strip() in ("0", "0.0")
        or cells.get("left_out", "").casefold() in (*_YES, *_OUT)
        or fitted.casefold() in (*_NO, *_OUT)
        or any(map(says_so, said))
        or any(says_so(cell, alone=True) for cell in row)
    )


def _have_values(values: Iterable[str]) -> bool:
    """Tell whether most cells of a column of values hold one, and no mark as NC."""
    filled = [*filter(None, values)]
    return 2 * sum(_MARK.fullmatch(value) is not None for value in filled) < len(filled)


def says_so(text: str, *, alone: bool = False) -> bool:
    """Tell whether a text says that a part is not fitted; if `alone`, it must say nothing else."""
    return bool(_SAID_ALONE.fullmatch(text) if alone else _SAID.search(text))
