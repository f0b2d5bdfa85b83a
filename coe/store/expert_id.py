"""The id of an expert in a store, `<board>/<name>` or `<name>`; no other module takes an id apart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertId:
    """The parts of an id; `board` is "" if the expert belongs to no board. References have such ids, too."""

    board: str
    name: str

    @classmethod
    def of(cls, text: str) -> ExpertId:
        """Return the parts of an id; `Store.folder` says whether it is a valid id."""
        board, _, name = text.rpartition("/")
        return cls(board, name)

    def __str__(self) -> str:
        return "/".join(self.folders)

    @property
    def folders(self) -> tuple[str, ...]:
        """The names of the expert's folders, from the root of the store."""
        return (self.board, self.name) if self.board else (self.name,)
