"""The words by which placement files and bills of materials say that a part is not fitted."""

from __future__ import annotations

import re
from collections.abc import Mapping

FITTED = (
    *("fitted", "populate", "populated", "placed", "mounted", "mount", "assembly", "assemble", "assembled", "fit"),
    *("install", "installed", "stuff", "stuffed"),
    *("variation", "bestückt", "bestückung", "bestücken", "monté", "montado", "montato", "zamontowany", "贴装", "実装"),
)
"""The columns that say whether a part is there."""
LEFT_OUT = (
    *("dnp", "dni", "dnf", "do not populate", "do not place", "do not fit", "no stuff", "not fitted", "not mounted"),
    *("exclude from position files", "nicht bestückt", "未実装", "不贴"),
)
"""The columns that say whether it is not."""
_NO = ("0", "n", "no", "false", "nm", "nein", "non", "nie", "ne", "нет", "否", "いいえ")
_YES = ("1", "x", "y", "yes", "true", "excluded from bom", "ja", "oui", "si", "sí", "sim", "tak", "да", "是", "はい")
_SAID = re.compile(
    r"\b(dnp|dni|dnf|dnm|nofit|not (?:fitted|mounted|populated|placed|installed|assembled)|"
    r"do not (?:populate|place|fit|mount|assemble|install|solder|load|stuff)|no[ -]?stuff|no[ -]?pop|"
    r"no[ -]?load(?! *\w)|unpopulated|(?:nicht |un)best(?:ü|ue)ck(?:t|en)|non mont[ée]|no montar|"
    r"не (?:устанавливать|монтировать))\b|不贴|不焊|不装|未実装",
    re.IGNORECASE,
)


def is_left_out(cells: Mapping[str, str]) -> bool:
    """Tell whether the cells of the fields `fitted` and `left_out` leave a part out."""
    fitted, left_out = cells.get("fitted", ""), cells.get("left_out", "")
    return left_out.casefold() in _YES or fitted.casefold() in _NO or any(map(says_so, (fitted, left_out)))


def says_so(text: str, *, alone: bool = False) -> bool:
    """Tell whether a text says that a part is not fitted; if `alone`, it must say nothing else."""
    return bool(_SAID.fullmatch(text) if alone else _SAID.search(text))
