"""`coe-board new`: what it hands over, and the board file that compares each part with that of a good board.

Files that a person edits, what is left to decide, and the next commands; files that are there are never replaced.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coe.board.drafting import TODO
from coe.board.steps import polarity_is_known
from coe.cli.common import Exit, err, out, point_out
from coe.errors import ConfigError, list_few
from coe.helpers.files import replacing, writing
from coe.helpers.visible import visible

if TYPE_CHECKING:
    from coe.placement.draft_recipe import BoardPlan

EXPERT = "first-look"
_HEAD = """\
# A first board file: one expert compares each part with that of a good board. docs/rules.md explains it.
board: {name}
experts:
  {expert}: {{kind: difference, labels: [different], input: 160, reject: [different], then: {{none: OK}}}}
components:
"""


def rules_text(name: str, drawn: BoardPlan) -> str:
    """Return the board file: each component is compared with its reference; `polarity` is known by its names."""
    lines = []
    for part in drawn.parts:
        polarity = ", polarity: yes" if any(polarity_is_known(part.name, refdes) for refdes in part.refdes) else ""
        seen = [refdes for refdes in part.refdes if refdes not in drawn.unseen]
        out = "" if seen else "# no picture shows all of it, see not_inspected of the recipe: "
        count = len(seen or part.refdes)
        lines.append(f"  {out}{part.name}: {{count: {count}, inspect: {EXPERT}, reference: {part.name}{polarity}}}\n")
    return _HEAD.format(name=name, expert=EXPERT) + "".join(lines)


@dataclass(frozen=True, slots=True)
class FirstBoard:
    """A first board, before anything is written.

    `files` holds the bytes of each file by its path. `notes` are sentences about what was found and guessed.
    `commands` are the next commands, each as its words. `photographs` is where pictures of parts lie that experts learn
    from, and `learn` the command by which they do once more.
    """

    files: Mapping[Path, bytes]
    notes: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    photographs: str = ""
    learn: tuple[str, ...] = ()

    @property
    def open_lines(self) -> tuple[str, ...]:
        """Where a person must decide, each as "file:line: text"."""
        return tuple(
            f"{path}:{number}: {line.strip()}"
            for path, raw in self.files.items()
            if path.suffix in (".yaml", ".csv")
            for number, line in enumerate(raw.decode("utf-8").splitlines(), 1)
            if TODO in line.partition("#")[2]
        )


def check_name(name: str) -> None:
    """Raise ConfigError for what cannot name a board and its files."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", name):
        raise ConfigError(f"'{visible(name[:100])}' is no name of a board; give letters, digits and ._+-, as line7")
    if name.casefold().endswith(".calibration"):
        raise ConfigError(f"'{name}' is the name of another board's calibration file; give another name")


def refuse_present(paths: Mapping[Path, object]) -> None:
    """Raise ConfigError, which names all of them, if files are there that would be replaced."""
    if present := [str(path) for path in paths if path.is_symlink() or path.exists()]:
        raise ConfigError(
            f"{list_few(present)}: is there already, and nothing is replaced; move it away, or give another "
            "NAME or --to"
        )


def write(board: FirstBoard) -> None:
    """Write the files of a new board, and say what they are and what comes next; raises ConfigError for files there."""
    refuse_present(board.files)
    for path, raw in board.files.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(raw)
    for note in board.notes:
        point_out("note", note)
    for path in board.files:
        if path.suffix in (".yaml", ".csv"):
            out.print(f"written: {path}")
    for line in board.open_lines:
        out.print(f"to decide: {line}")
    if board.commands:
        out.print("then:")
    for words in board.commands:
        out.print(f"  {shlex.join(words)}")


def run_commands(board: FirstBoard) -> int:
    """Run the next commands, one after another, until one fails; return the worst exit status.

    A command that found something wrong in pictures (`Exit.NOT_GOOD`) did not fail.
    """
    worst = 0
    for words in board.commands:
        err.print(f"$ {shlex.join(words)}")
        program = Path(sys.executable).with_name(words[0])
        status = subprocess.run([str(program), *words[1:]], check=False).returncode
        worst = max(worst, status)
        if status > Exit.NOT_GOOD:
            break
    return worst
