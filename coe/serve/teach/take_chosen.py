"""`python -m coe.serve.teach.take_chosen FOLDER NAME STORE`: puts the experts that `choose` took into the board file.

Components for which there are too few pictures stay compared with a good part; what that needs is made, too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from coe.board import rules
from coe.cli.start import Exit
from coe.files import write_atomically
from coe.serve.teach import yaml_edit
from coe.serve.teach.teach_draft import BoardDraft
from coe.serve.teach.teach_work import command_of

CHOSEN = "chosen"
"""The folder in that of a draft in which `choose` writes its board file."""


def take_chosen(draft: BoardDraft) -> list[str]:
    """Write the lines of the chosen experts into the board file; return the components that have none."""
    chosen = draft.folder / CHOSEN / f"{draft.name}.yaml"
    text = draft.rules.read_text(encoding="utf-8")
    names: list[str] = []
    if chosen.is_file():
        lines = chosen.read_text(encoding="utf-8")
        names = list(rules.of_bytes(chosen, lines.encode()).components)
        for name in names:
            entry = yaml_edit.value(lines, ("experts", name))
            if yaml_edit.has(text, ("experts", name)):
                text = yaml_edit.with_value(text, ("experts", name), entry)
            else:
                text = yaml_edit.with_entry(text, ("experts",), f"{name}: {entry}")
            text = yaml_edit.with_value(text, ("components", name, "inspect"), name)
            if yaml_edit.has(text, ("components", name, "reference")):  # it has learned without one
                text = yaml_edit.without(text, ("components", name, "reference"))
    board = rules.of_bytes(draft.rules, text.encode())
    write_atomically(draft.rules, [text])
    return [name for name in board.components if name not in names]


def compared(draft: BoardDraft, store: str) -> list[tuple[str, ...]]:
    """Return the commands that make references, and train the experts that compare with them."""
    board = rules.load(str(draft.rules))
    comparing = {one.root.expert for one in board.components.values() if one.references and one.root.expert}
    own = sorted(id for id in comparing if board.experts[id].kind == "difference")
    if not own:
        return []
    file, photos = draft.named(draft.rules), draft.named(draft.photos)
    make = ("coe-experts", "reference", file, "--images", photos, "--first-of-two", "--store", store)
    learn = ("--data", photos, "--epochs", "1", "--no-prepare", "--store", store)
    return [make, *(("coe-experts", "train", board.experts[id].weights, "--board", file, *learn) for id in own)]


def main() -> None:
    """Take what the arguments name; ends with the status of the command that failed."""
    draft, store = BoardDraft(Path(sys.argv[1]), sys.argv[2]), sys.argv[3]
    rest = take_chosen(draft)
    if rest:
        print(f"compared with a good part, for want of pictures: {', '.join(rest)}", flush=True)
    for words in compared(draft, store):
        status = subprocess.run(command_of(words), check=False).returncode
        if status not in (Exit.OK, Exit.NOT_GOOD):
            sys.exit(status)


if __name__ == "__main__":
    main()
