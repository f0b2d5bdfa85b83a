"""The words by which placement files and bills of materials say that a part is not fitted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

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
_PLACED = (*FITTED, "f", "-", "--", "n/a", "none", "ok", "place", "load", "loaded", "soldered", "execute", "no skip")
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


def is_left_out(cells: Mapping[str, str], row: Iterable[str]) -> bool:
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


def unclear(cells: Mapping[str, str], row: Iterable[str], *, among_values: bool) -> str:
    """Return what is wrong with a word in a column as DNP, or a value as NC, that says neither yes nor no; or "".

    `among_values` says that a file has values in which NC is a mark, as `have_values` tells.
    """
    word, value = cells.get("left_out", ""), cells.get("value", "")
    if not (word.casefold() in ("", *_YES, *_OUT, *_NO, *_PLACED) or says_so(word)):
        return f"'{word}' in a column such as DNP or Skip says neither yes nor no; write one of these"
    is_asked = among_values and _MARK.fullmatch(value) and _VALUED.match(cells.get("refdes", ""))
    if not is_asked or word or cells.get("fitted") or is_left_out(cells, row):
        return ""
    return f"'{value}' as a value may say that a part is not fitted; say yes or no in a column DNP of this line"


def have_values(values: Iterable[str]) -> bool:
    """Tell whether most cells of a column of values hold one, and no mark as NC."""
    filled = [*filter(None, values)]
    return 2 * sum(_MARK.fullmatch(value) is not None for value in filled) < len(filled)


def says_so(text: str, *, alone: bool = False) -> bool:
    """Tell whether a text says that a part is not fitted; if `alone`, it must say nothing else."""
    return bool(_SAID_ALONE.fullmatch(text) if alone else _SAID.search(text))
