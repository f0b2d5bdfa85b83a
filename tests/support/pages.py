"""README.md, CONTRIBUTING.md and docs/ as data: the fenced blocks of each page, and the words that it sets as code.

A page says in comments, which its readers do not see, how its programs are run:

    <!-- not run: REASON -->            before a Python block: the block is only compiled
    <!-- blocks share names -->         anywhere: the blocks of the page are one program
    <!-- prints in the tests: TEXT -->  behind a Python block whose line is a stand-in there: what the block prints

Where a block prints the same for its readers, a block of the language `text` behind it shows that. `...` stands for
what varies.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHARED = "<!-- blocks share names -->"
_FENCED = re.compile(
    r"""
    (?:^<!--[ ]not[ ]run:[ ](?P<reason>[^\n]+)[ ]-->\n+)?
    ^```(?P<language>\w*)\n
    (?P<text>.*?)
    ^```$
    (?:\n+<!--[ ]prints[ ]in[ ]the[ ]tests:\s(?P<output>.*?)-->$)?
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block, whose first line is `line` of the page; `reason` tells why a program is not run."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    output: str

    @property
    def place(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page):
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCED.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        if match["language"] == "text" and found and found[-1].language == "python":
            found[-1] = replace(found[-1], output=match["text"])
        else:
            output = match["output"] or ""
            found.append(Block(page, line, match["language"], match["text"], match["reason"], output))
    return found


def programs():
    """Return the Python blocks that are run, those of a page that shares names as one program."""
    found = []
    for page in PAGES:
        run = [block for block in blocks(page) if block.language == "python" and block.reason is None]
        shared = SHARED in page.read_text(encoding="utf-8")
        found += [run] if shared else [[block] for block in run]
    return found


def commands():
    """Yield (place, command) for each line of a block without a language; a line that ends in a backslash goes on."""
    for page in PAGES:
        for block in blocks(page):
            if not block.language:
                for line in block.text.replace("\\\n", " ").splitlines():
                    yield block.place, line.strip().removeprefix(".venv/bin/")


def links(page):
    """Yield (file, name of a heading or "") for each place of this repository that a page points to."""
    for target, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", _FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target:
            yield page.parent / target if target else page, heading


def headings(page):
    lines = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def inline(page):
    return _INLINE.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
