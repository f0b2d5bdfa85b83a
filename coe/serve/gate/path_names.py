"""Names that clients give. Law: a name is plain text of bounded length, and never part of a path or of a statement."""

from __future__ import annotations

from http import HTTPStatus

from coe.serve.database.tables import NAME
from coe.serve.gate.operation_routes import Visit
from coe.serve.gate.problems import Problem, ProblemKind
from coe.visible import is_visible


def name_from(visit: Visit, part: str) -> str:
    """Return a name from the path; raises Problem if it has hidden characters or is too long."""
    name = visit.part(part)
    if not 0 < len(name) <= NAME or not is_visible(name) or "\n" in name:
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            ProblemKind.BAD_REQUEST,
            f"the {part} in the path is longer than {NAME} characters, or has hidden characters",
            f"give a {part} of plain characters",
        )
    return name
