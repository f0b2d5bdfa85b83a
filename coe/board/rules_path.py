"""Where board files lie: beside the work, in a folder that a variable names, or in the installed package."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import resources
from pathlib import Path

from coe import config
from coe.board import calibration_file
from coe.errors import RulesError, did_you_mean
from coe.helpers.spelling import composed


def find(board: str | Path) -> Path:
    """Return the path of a board file.

    A name is looked for as `<name>.yaml` and `board_<name>.yaml` in `routing_rules` of the working directory, in the
    folder that $COE_RULES names, and in the installed package, in this order. Raises RulesError.
    """
    path = Path(board)
    if path.suffix in (".yaml", ".yml"):
        if not os.path.isfile(path):  # unlike `stat`, it does not raise for a name that is too long
            there = [folder / path.name for folder in _folders() if os.path.isfile(folder / path.name)]
            raise RulesError(f"{path}: no such board file{f'; did you mean {there[0]}?' if there else ''}")
        return path
    known: list[str] = []
    for folder in _folders():
        there = sorted(folder.glob("*.yaml"))
        wanted = [composed(name).lower() for name in (f"{board}.yaml", f"board_{board}.yaml")]
        if found := [path for name in wanted for path in there if composed(path.name).lower() == name]:
            return found[0]
        known += [path.stem.removeprefix("board_") for path in there if not calibration_file.is_calibration(path)]
    where = ", ".join(str(folder) for folder in _folders())
    raise RulesError(f"no board file for '{board}' in {where}{did_you_mean(str(board), known)}")


def word_for(path: Path) -> str:
    """Return the word by which a command finds a board file: its name, if that leads there, else its path."""
    name = path.stem.removeprefix("board_")
    with suppress(RulesError, OSError):
        if os.path.samefile(find(name), path):
            return name
    return str(path)


def _folders() -> list[Path]:
    folders = [Path(config.RULES_FOLDER)]
    if variable := os.environ.get(config.RULES_VARIABLE):
        folders.append(Path(variable))
    return [*folders, Path(str(resources.files("routing_rules")))]
