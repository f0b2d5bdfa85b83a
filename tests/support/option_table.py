"""The table of a line's options in docs/api.md, made from `LineOptions`. As a program it writes the table there."""

import re
from pathlib import Path

from coe.inspector.line_options import OPTIONS, LineOptions

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
_HEAD = "| option | default | meaning |\n|---|---|---|\n"
_TABLE = re.compile(re.escape(_HEAD.splitlines()[0]) + r"\n(?:\|.*\n)*")


def table():
    return _HEAD + "".join(_row(name) for name in OPTIONS)


def table_of_page():
    found = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    return found[0] if found else ""


def _row(name):
    option, field = OPTIONS[name], LineOptions.model_fields[name]
    told = type(field.default) in (str, int, float, bool)
    default = option.default or (f"`{field.default!r}`" if told else "")
    return f"| `{name}` | {default} | {option.help} |\n"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_TABLE.sub(lambda _: table(), page), encoding="utf-8")
