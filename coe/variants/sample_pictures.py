"""Which pictures are samples of which expert, when its variants are prepared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coe.board import photo_labels
from coe.board.rules import Rules
from coe.pictures import finding
from coe.store.expert_id import ExpertId


class SamplePictures:
    """Sample images of each expert: by the board's rules, else those in folders with the expert's name, else all."""

    # If a board or folders say whose pictures are whose, an expert of which there are none has no pictures.

    def __init__(self, folder: Path | None, board: Rules | None, ids: Sequence[str] = ()) -> None:
        self._by_expert: dict[str, list[Path]] = {}
        self._all: list[Path] = []
        self._folder = folder
        if folder is None:
            return
        items, _ = finding.find(folder, photo_labels.known_to(board) if board else ())
        self._all = [item.path for item in items]
        for expert in board.experts.values() if board else ():
            routed = [item.path for item in items if board and expert.id in board.router.order(item.component)]
            self._by_expert[expert.weights] = routed
        by_folder: dict[str, list[Path]] = {}
        for path in self._all:
            for name in {path.parent.name, path.parent.parent.name}:  # <expert>/<picture>, <expert>/<label>/<picture>
                by_folder.setdefault(name, []).append(path)
        named = {id: by_folder.get(ExpertId.of(id).name, []) for id in ids if id not in self._by_expert}
        if any(named.values()):
            self._by_expert |= named

    def of(self, id: str) -> tuple[list[Path], str]:
        """Return the images of an expert, and in words where they are from."""
        if self._folder is None:
            return [], ""
        if self._by_expert:
            return self._by_expert.get(id, []), f"its pictures in {self._folder.name}"
        return self._all, f"all pictures in {self._folder.name}"

    @property
    def are_mixed(self) -> bool:
        """Whether nothing says which pictures are of which expert."""
        return bool(self._all) and not self._by_expert
