"""The circumstances of simulated runs: how many images come, how fast, and what the line knows of them beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from coe import config
from coe.board import rules
from coe.board.rules import Rules
from coe.cli.tool_options import words_of
from coe.errors import ConfigError
from coe.lab.cli.bench_out import choices
from coe.lab.workloads.workload import (
    BOARD,
    DISTURBED,
    EVERY_S,
    ORDERS,
    TAILS,
    TASKS,
    UNDISTURBED,
    Disturbance,
    Workload,
    placement,
    synthetic,
)

FORESIGHT = ("learned", "parts", "none")
BOARD_IMAGES = 1000
"""How many images a board has that is no task of the paper."""

SettlingOption = Annotated[
    int,
    typer.Option(
        "--settling", min=0, max=config.MAX_COUNT, help="Leave so many images at first out of p50, p99 and late."
    ),
]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The options of this module, checked."""

    images: int | None = None
    every_s: float | None = None
    disturbance: Disturbance = UNDISTURBED
    foresight: Sequence[str] = FORESIGHT[:1]
    cold: bool = False
    settling: int = 0

    def of_task(self, task: str, board: str | None, order: str | None, tail: str | None, seed: int) -> list[Workload]:
        """Return the workloads of tasks and trace files, or of a board, by name or file, if there is one, as `of` does.

        Those that are drawn come in every order and tail of the options; raises ConfigError.
        """
        from coe.lab.workloads import trace_file

        if board is not None:
            loaded = rules.load(board)
            return self.of(self._drawn(loaded.board, loaded, BOARD_IMAGES, order, tail, seed), seed)
        workloads: list[Workload] = []
        for name in TASKS if task.strip() == "all" else words_of(task):
            if (of_paper := TASKS.get(name)) is not None:
                workloads += self._drawn(name, rules.load(of_paper.board), of_paper.requests, order, tail, seed)
            else:
                workloads.append(trace_file.workload(name))
        return self.of(workloads, seed)

    def _drawn(
        self, name: str, board: Rules, requests: int, order: str | None, tail: str | None, seed: int
    ) -> list[Workload]:
        return [
            synthetic(
                board,
                task=name,
                order=o,
                tail=t,
                requests=self.images or requests,
                every_s=EVERY_S if self.every_s is None else self.every_s,
                seed=seed,
                disturbance=self.disturbance,
            )
            for o in choices("--order", order or ORDERS[0], ORDERS)
            for t in choices("--tail", tail or BOARD, TAILS)
        ]

    def of(self, workloads: Sequence[Workload], seed: int) -> list[Workload]:
        """Return each workload once for each word of --foresight; the words are named in its order.

        Raises ConfigError for an option that a workload would ignore, or that leaves nothing of it.
        """
        return [self._of(workload, word, seed) for workload in workloads for word in self.foresight]

    def _of(self, workload: Workload, word: str, seed: int) -> Workload:
        if self.settling >= len(workload.arrivals):
            raise ConfigError(
                f"--settling {self.settling} leaves out all {len(workload.arrivals)} images of {workload.task}; leave "
                "out fewer"
            )
        words = [workload.order]
        if self.disturbance is DISTURBED:
            if workload.order != "boards":
                raise ConfigError(
                    f"--disturbed is for boards, and {workload.task} {workload.order} has none; add --order boards"
                )
            words.append("disturbed")
        if word != FORESIGHT[0]:
            words.append(word)
        if word == "parts":
            if workload.order != "boards":
                raise ConfigError(
                    f"--foresight parts needs a parts list, and {workload.task} {workload.order} has none; add --order "
                    "boards, or leave it out"
                )
            workload = replace(workload, parts=placement(workload.board, seed))
        elif word == "none":
            workload = workload.unforeseen()
        if self.cold:
            words.append("cold")
        return replace(workload, order=" ".join(words), cold=self.cold, settling=self.settling)


def circumstances_of(
    images: Annotated[
        int | None,
        typer.Option(min=1, max=config.MAX_COUNT, help="How many images a task has.", show_default="the paper's"),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0,
            max=config.MAX_COUNT,
            help="Let an image of a task arrive every so many milliseconds.",
            show_default=f"{EVERY_S * 1e3:g}",
        ),
    ] = None,
    disturbed: Annotated[
        bool,
        typer.Option(
            "--disturbed",
            help=f"With boards: {DISTURBED.left_out:.0%} of the parts have no image, images come up to "
            f"{DISTURBED.places} places early or late, and {DISTURBED.exchanged:.0%} of the parts are others.",
        ),
    ] = False,
    foresight: Annotated[
        str,
        typer.Option(
            metavar="LIST|all",
            help="learned: from the boards that came before. parts: the parts list is known. none: images have no "
            "reference designators.",
        ),
    ] = FORESIGHT[0],
    cold: Annotated[
        bool, typer.Option("--cold", help="Nothing is loaded when the first image comes; there are no bounds then.")
    ] = False,
    settling: SettlingOption = 0,
) -> Circumstances:
    """Read the options of what comes, and how; raises ConfigError for an unknown word."""
    words, disturbance = choices("--foresight", foresight, FORESIGHT), DISTURBED if disturbed else UNDISTURBED
    return Circumstances(images, None if every is None else every / 1e3, disturbance, words, cold, settling)
