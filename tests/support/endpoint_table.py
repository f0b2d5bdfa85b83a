"""The table of endpoints in docs/integration.md, made from `/openapi.json`. As a program it writes the table there."""

import asyncio
import re
from pathlib import Path

from coe.serve.gate.app import OPERATIONS, described

PAGE = Path(__file__).parents[2] / "docs" / "integration.md"
_HEAD = "| endpoint | roles | effect |\n|---|---|---|\n"
_TABLE = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)*")
_OF_PAGES = (
    "session",
    "stats",
    "reports",
    "exports",
    "trials",
    "v1/views",
    "boards/{id}/part",
    "calls/{id}/view",
    "calls/{id}/reference",
    "calls/{id}/difference",
    "overlay",
    "confirmation",
)
"""What the paths have in them that only the station's pages need; the table leaves them out."""
_GROUPS = {
    ("engineer", "feeder"): "feed",
    ("engineer", "operator"): "verify",
    ("engineer", "operator", "viewer"): "read",
    ("engineer", "feeder", "operator", "viewer"): "all",
    (): "no key",
}
"""The words of the page for roles that together may do the same; a single role has its own."""


def table():
    document = asyncio.run(described(OPERATIONS).handler(None))  # type: ignore[arg-type]
    return _HEAD + "".join(
        f"| `{method.upper()} {path.removeprefix('/api/v1/')}` | {_roles(operation)} | {_effect(operation)} |\n"
        for path, methods in document["paths"].items()
        if path.startswith(("/api/", "/health/", "/metrics")) and not any(f"/{part}" in path for part in _OF_PAGES)
        for method, operation in methods.items()
    )


def table_of_page():
    found = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    return found[0] if found else ""


def _roles(operation):
    roles = tuple(operation["x-roles"] or ())
    return _GROUPS.get(roles, ", ".join(roles))


def _effect(operation):
    return str(operation["summary"]).partition(". ")[0].rstrip(".")


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_TABLE.sub(lambda _: table(), page), encoding="utf-8")
