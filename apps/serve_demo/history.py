"""Write a history of boards, for pages and measurements: one shift has more defects, and one expert drifts.

    python -m apps.serve_demo.history line7/serve.yaml --boards 2000 --hours 72

It writes the rows that a line and its operators would have written, and pictures of the newest boards only.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sqlalchemy import Connection

from apps.demo.production import BoardPlace, lot
from apps.demo.render import COMPONENTS, render
from coe.core import Verdict
from coe.lab.past_boards import HistoryRows, Row
from coe.serve import service_config as configs
from coe.serve.clock import HOUR_US, SECOND_US, now_us
from coe.serve.database import fault_log, recipe_versions
from coe.serve.database.board_rows import GoodComponent, pack
from coe.serve.database.connecting import Database, open_database
from coe.serve.database.migration import expect_newest
from coe.serve.database.tables import NewFault, Recipe
from coe.serve.enums import FaultKind, Outcome, Process
from coe.serve.picture_folder import Pictures
from coe.serve.recipe_content import RecipeContent

ENDS_US = 10 * SECOND_US
"""Age of the newest decision."""
TOGETHER = 2000
"""Boards written in one transaction."""
_OPERATORS = ("ann", "bea")
_SHARE_ANSWERED = 0.97
_LATE = 0.004


def fill(database: Database, recipe: Recipe, wanted: argparse.Namespace, pictures: Pictures, end_us: int) -> None:
    """Write boards with calls and answers that end at `end_us`, the newest with pictures; and a fault."""
    writer = _Writer(np.random.default_rng(wanted.seed), recipe.id, pictures)
    step_us = round(wanted.hours * HOUR_US / max(1, wanted.boards))
    moments = [end_us - ENDS_US - (wanted.boards - 1 - number) * step_us for number in range(wanted.boards)]
    for first in range(0, wanted.boards, TOGETHER):
        with database.writing() as connection:
            writer.rows = HistoryRows(connection)
            for number, moment in enumerate(moments[first : first + TOGETHER], first):
                writer.board(number, moment, newest=wanted.boards - number - 1, pictured=wanted.pictured)
            writer.rows.insert()
    database.write(
        fault_log.note,
        NewFault(Process.WEB, FaultKind.SINK, "the broker at 127.0.0.1 refuses connections", "mqtt"),
        end_us - HOUR_US,
    )


class _Writer:
    """Makes boards, with their pictures; `rows` are those of the transaction that is open."""

    def __init__(self, rng: np.random.Generator, recipe_id: int, pictures: Pictures) -> None:
        self._rng, self._recipe_id, self._parts, self._pictures = rng, recipe_id, lot(1, 1), pictures
        self._drawn: dict[tuple[str, str], list[bytes]] = {}
        self.rows: HistoryRows

    def board(self, number: int, moment_us: int, *, newest: int, pictured: int) -> None:
        """Add a board; `newest` counts from the newest board, which is 0."""
        rng, key = self._rng, f"demo-{number:06d}"
        hour = moment_us // HOUR_US
        # One shift of three makes more defects, for a reason that the Pareto shows.
        bad_share = 0.0014 if hour // 8 % 3 == 1 else 0.0006
        is_pictured = newest < pictured
        # The newest boards have more to look at.
        bad_share *= 8 if is_pictured else 1
        chances = rng.random(len(self._parts))
        bad = {index for index, chance in enumerate(chances) if chance < bad_share + 0.0008}
        good: list[GoodComponent] = []
        calls: list[Row] = []
        real: list[Row] = []
        for index, part in enumerate(self._parts):
            if index in bad:
                is_real = bool(chances[index] < bad_share)
                calls.append(self._call(key, part, moment_us, is_real=is_real, is_pictured=is_pictured))
                real += calls[-1:] if is_real else []
                continue
            if not is_pictured:
                continue
            view = self._view(key, part, "", moment_us)
            good.append(GoodComponent(part.refdes, part.component, view, None, [self._finding(part, "ok", 0.97)]))
        if not is_pictured or (newest >= pictured // 2 and rng.random() < _SHARE_ANSWERED):
            for call in calls:
                self._answer(call, moment_us + int(rng.integers(5, 300)) * SECOND_US, is_real=call in real)
        self.rows.board(
            key,
            self._recipe_id,
            moment_us,
            calls,
            serial=f"SN{240_000 + number}",
            work_order=f"WO-{hour // 8 % 1000}",
            pass_number=1 if rng.random() < 0.98 else 2,
            due_us=moment_us + 6 * SECOND_US,
            late=bool(rng.random() < _LATE),
            components=len(self._parts),
            findings=pack(good) if is_pictured else None,
        )

    def _call(self, key: str, part: BoardPlace, moment_us: int, *, is_real: bool, is_pictured: bool) -> Row:
        defects = COMPONENTS[part.component].defects
        label = defects[int(self._rng.integers(len(defects)))]
        view = self._view(key, part, label if is_real else "", moment_us) if is_pictured else None
        score = float(np.clip(self._rng.normal(0.93 if is_real else 0.74, 0.06), 0.5, 0.999))
        return self.rows.call(
            part.refdes,
            part.component,
            label,
            moment_us,
            view_id=view,
            score=score,
            verdict=Verdict.NG if is_real else Verdict.REVIEW,
            findings=[self._finding(part, label, score)],
        )

    def _finding(self, part: BoardPlace, label: str, score: float) -> dict[str, Any]:
        expert = f"body-{part.component.lower()}"
        return {"expert": expert, "variant": "float32", "label": label, "score": round(score, 4), "boxes": []}

    def _answer(self, call: Row, moment_us: int, *, is_real: bool) -> None:
        outcome = Outcome.FALSE_CALL
        if is_real:
            outcome = Outcome.CONFIRMED if self._rng.random() < 0.93 else Outcome.ACCEPTED
        self.rows.answer(call, outcome, moment_us, _OPERATORS[int(self._rng.integers(len(_OPERATORS)))])

    def _view(self, key: str, part: BoardPlace, defect: str, moment_us: int) -> int:
        """Keep a picture of a part, and return its view's id; pictures of a kind are drawn a few times."""
        drawn = self._drawn.setdefault((part.component, defect), [])
        if len(drawn) < 3:
            drawn.append(_png(render(part.component, defect or None, self._rng)))
        content = drawn[int(self._rng.integers(len(drawn)))]
        receiving = self._pictures.receive()
        receiving.write(content)
        return self.rows.view(
            key,
            part.refdes,
            moment_us - 5 * SECOND_US,
            file=receiving.keep(),
            sha256=receiving.sha256,
            size_bytes=receiving.size_bytes,
            pixels=COMPONENTS[part.component].size ** 2,
        )


def _png(picture: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "png")
    return file.getvalue()


def recipe_of(connection: Connection) -> Recipe:
    """Return the active recipe; without any, a recipe of the demo board's parts."""
    for recipe in recipe_versions.all_active(connection):
        return recipe
    rules = Path("routing_rules/demo.yaml").read_text(encoding="utf-8")
    content = RecipeContent(rules=rules, parts={part.refdes: part.component for part in lot(1, 1)})
    return recipe_versions.add(connection, "demo", content.model_dump(mode="json"), by="demo", now_us=now_us())


def main() -> None:
    """Fill the database of a service."""
    parser = argparse.ArgumentParser(prog="python -m apps.serve_demo.history", description=__doc__)
    parser.add_argument("config", type=Path, help="config file of the service")
    parser.add_argument("--boards", type=int, default=2000)
    parser.add_argument("--hours", type=float, default=72.0)
    parser.add_argument("--pictured", type=int, default=40, help="number of the newest boards that get pictures")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config = configs.load(options.config)
    database = open_database(config.database_url)
    expect_newest(database)
    pictures = Pictures(config.pictures)
    pictures.prepare()
    recipe = database.write(recipe_of)
    fill(database, recipe, options, pictures, now_us())
    database.close()


if __name__ == "__main__":
    main()
