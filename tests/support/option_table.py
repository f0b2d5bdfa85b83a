"""The table of a line's options in docs/api.md, made from `LineOptions`. As a program it writes the table there."""

import re
from pathlib import Path

from coe.inspector.line_options import OPTIONS, Door, LineOptions

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
_HEAD = "| option | default | meaning | in commands | in `serve.yaml` |\n|---|---|---|---|---|\n"
_TABLE = re.compile(re.escape(_HEAD.splitlines()[0]) + r"\n(?:\|.*\n)*")


def table() -> str:
    """Return the table as the page must have it."""
    return _HEAD + "".join(_row(name) for name in OPTIONS)


def table_of_page() -> str:
    """Return the table as the page has it; "" if there is none."""
    found = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    return found[0] if found else ""


def _row(name: str) -> str:
    option, field = OPTIONS[name], LineOptions.model_fields[name]
    flag = option.flag or f"--{name.replace('_', '-')}"
    told = type(field.default) in (str, int, float, bool)
    default = option.default or (f"`{field.default!r}`" if told else "")
    cells = (
        f"`{name}`",
        default,
        option.help,
        f"`{flag}`" if option.doors - {Door.SERVE} else "",
        f"`{option.key or name}`" if Door.SERVE in option.doors else "",
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_TABLE.sub(lambda _: table(), page), encoding="utf-8")
