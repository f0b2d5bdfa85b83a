"""README.md, CONTRIBUTING.md and docs/ as data: the fenced blocks of each page, and the words that it sets as code.

A page says in comments, which its readers do not see, how its programs are run:

`<!-- not run: REASON -->` before a Python block: it is only compiled. `<!-- blocks share names -->`: the page's blocks are
one program. A block of the language `text` behind a Python block is what that prints, with `...` for what varies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHARED = "<!-- blocks share names -->"
_FENCED = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block; `place` is "page:line" of its first line, `reason` why a program is not run."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    output: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page; what a program prints stands with the program."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in _FENCED.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        block = Block(page, line, match["language"], match["text"], match["reason"])
        if block.language == "text" and found and found[-1].language == "python":
            program = found[-1]
            found[-1] = Block(page, program.line, "python", program.text, program.reason, block.text)
        else:
            found.append(block)
    return found


def programs() -> list[list[Block]]:
    """Return the Python blocks that are run, those of a page that shares names as one program."""
    found: list[list[Block]] = []
    for page in PAGES:
        run = [block for block in blocks(page) if block.language == "python" and block.reason is None]
        shared = SHARED in page.read_text(encoding="utf-8")
        found += [run] if shared else [[block] for block in run]
    return found


def commands() -> Iterator[tuple[str, str]]:
    """Yield (place, command) for each line of a block without a language; a line that ends in a backslash goes on."""
    for page in PAGES:
        for block in blocks(page):
            if not block.language:
                for line in block.text.replace("\\\n", " ").splitlines():
                    yield block.place, line.strip().removeprefix(".venv/bin/")


def inline(page: Path) -> list[str]:
    """Return what a page sets as code inside its sentences."""
    return _INLINE.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
