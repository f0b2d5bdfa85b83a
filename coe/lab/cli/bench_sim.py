"""`coe-bench sim`: compares strategies in virtual time, on a simulated box, or on several boxes and a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import typer

from coe import config
from coe.board import rules
from coe.board.rules import Rules
from coe.cli.common import err
from coe.cli.console import Progress
from coe.cli.options import JsonOption, MaxWaitOption, Options, check_json, option, refuse, seconds, words_of
from coe.core import FULL
from coe.errors import ConfigError
from coe.lab import preset
from coe.lab.cli import bench_out
from coe.lab.cli.bench_out import choices, show_figures
from coe.lab.rows import Row
from coe.lab.workloads.workload import BOARD, EVERY_S, ORDERS, TAILS, TASKS, Workload, placement, synthetic

if TYPE_CHECKING:
    from coe.lab.cluster_bench import ClusterRow, Fleet, Scene
    from coe.lab.machine import SimulatedMachine
    from coe.lab.simulated import Contender, Prepared

MIXED = "mixed"
FORESIGHT = ("learned", "parts", "none")
BOARD_IMAGES = 1000
"""How many images a board has that is no task of the paper."""
MISHAPS = ("none", "lost", "joins")
MOST_BOXES = 1024


# One box: which images come, how fast, and what the line knows of them beforehand


@dataclass(frozen=True, slots=True)
class Drawing:
    """The options of this name, checked: the images of a run but for their seed."""

    tasks: Sequence[str]
    board: str | None
    orders: Sequence[str]
    tails: Sequence[str]
    images: int | None
    every_s: float
    foresight: Sequence[str]

    def workloads(self, seed: int) -> list[Workload]:
        """Return the workloads, each once for each word of --foresight, which stands behind its order.

        Raises ConfigError.
        """
        if self.board is not None:
            drawn = self._drawn("", rules.load(self.board), BOARD_IMAGES, seed)
        else:
            tasks = [(name, TASKS[name]) for name in self.tasks]
            drawn = [w for name, task in tasks for w in self._drawn(name, rules.load(task.board), task.requests, seed)]
        return [self._foreseen(workload, word, seed) for workload in drawn for word in self.foresight]

    def _drawn(self, task: str, board: Rules, requests: int, seed: int) -> list[Workload]:
        """Draw a task, or images of a board under its own name, in each order and with each tail."""
        named, images = task or board.board, self.images or requests
        return [
            synthetic(board, task=named, order=order, tail=tail, requests=images, every_s=self.every_s, seed=seed)
            for order in self.orders
            for tail in self.tails
        ]

    def _foreseen(self, workload: Workload, word: str, seed: int) -> Workload:
        if word == FORESIGHT[0]:
            return workload
        if word == "none":
            workload = workload.unforeseen()
        elif workload.order != "boards":
            raise ConfigError(
                f"--foresight parts needs a parts list, and {workload.task} {workload.order} has none; add --order "
                "boards, or leave it out"
            )
        else:
            workload = replace(workload, parts=placement(workload.board, seed))
        return replace(workload, order=f"{workload.order} {word}")


class _Drawn(Options):
    """Which images come, and how."""

    task: str = option(f"Tasks of CoServe's paper (section 5.1): {', '.join(TASKS)}.", "A1", metavar="LIST|all")
    board: str | None = option(
        f"Draw images of this board by its counts, instead of --task: {BOARD_IMAGES:,}, or --images.",
        metavar="NAME|FILE",
    )
    order: str = option("iid: components at random by count. boards: board after board.", ORDERS[0], metavar="LIST|all")
    tail: str = option(
        f"How counts fall from component to component: {', '.join(TAILS)}; board: as in the board file.",
        BOARD,
        metavar="LIST|all",
    )
    images: int | None = option("Number of images.", min=1, max=config.MAX_COUNT, show_default="the paper's")
    every: float = option(
        "Time between images in milliseconds.", EVERY_S * 1e3, metavar="MS", min=0, max=config.MAX_COUNT
    )
    foresight: str = option(
        "Order of parts: learned from earlier boards; parts: from a parts list; none: unknown.",
        FORESIGHT[0],
        metavar="LIST|all",
    )

    def drawing(self) -> Drawing:
        """Return the options of what comes, and how; raises ConfigError for an unknown word."""
        return Drawing(
            choices("--task", self.task, TASKS),
            self.board,
            choices("--order", self.order, ORDERS),
            choices("--tail", self.tail, TAILS),
            self.images,
            self.every / 1e3,
            choices("--foresight", self.foresight, FORESIGHT),
        )


# Several boxes


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of several boxes, checked."""

    numbers: Sequence[int]
    boards: Sequence[str]
    mishaps: Sequence[str]


class _Boxes(Options):
    """Several boxes."""

    boxes: str | None = option(
        "Numbers of equal boxes in a network, e.g. 1,2,4,8.", metavar="LIST", show_default="one box"
    )
    boards: str | None = option(
        "With --boxes: draw images of these boards by their counts, instead of --task.", metavar="LIST"
    )
    mishap: str = option(
        "With --boxes, halfway: none, lost (a box dies) or joins (a box is added).", MISHAPS[0], metavar="LIST|all"
    )

    def several(self) -> ClusterOptions | None:
        """Return the options of several boxes; None without --boxes. Raises ConfigError."""
        if self.boxes is None:
            return None
        numbers = [_number(word) for word in words_of(self.boxes)]
        mishaps = choices("--mishap", self.mishap, MISHAPS)
        if "lost" in mishaps and 1 in numbers:
            raise ConfigError("--mishap lost removes a box, but --boxes 1 has no other; give at least 2 boxes")
        names = [] if self.boards is None else words_of(self.boards)
        return ClusterOptions(numbers, names, mishaps)


def _number(text: str) -> int:
    if not (text.isdecimal() and len(text) <= 4) or not 1 <= int(text) <= MOST_BOXES:
        raise ConfigError(f"--boxes: '{text}' is not a number of boxes from 1 to {MOST_BOXES:,}; write it like 1,2,4")
    return int(text)


def _run_boxes(several: ClusterOptions, scenes: Sequence[Scene], json_to: str | None) -> None:
    """Run each scene on all numbers of boxes, and show a row for each run."""
    from coe.lab.cluster_bench import Mishap, Rows, to_table

    kinds = [(number, Mishap(mishap)) for number in several.numbers for mishap in several.mishaps]
    rows: list[ClusterRow] = []
    with Progress(console=err, transient=True) as bar:
        progress = bar.add_task("simulating", total=len(scenes) * len(kinds))
        for scene in scenes:
            made = Rows(scene)
            for number, mishap in kinds:
                rows.append(made.row(number, mishap))
                bar.advance(progress)
    show_figures(to_table(rows), rows, json_to)


def _fleets(several: ClusterOptions, drawing: Drawing, seed: int) -> list[tuple[Workload, Fleet]]:
    """Return workloads with their boards; of several boards 1,000 images each unless a number is given."""
    from coe.lab.cluster_bench import Fleet, fleet

    names = several.boards
    if not names:
        return [
            (workload, Fleet(workload.board, {workload.board.board: tuple(workload.board.components)}))
            for workload in drawing.workloads(seed)
        ]
    joined = fleet(names)
    task = f"{len(names)} boards" if len(names) > 1 else joined.rules.board
    images = drawing.images or BOARD_IMAGES * len(names)
    return [(synthetic(joined.rules, task=task, requests=images, every_s=drawing.every_s, seed=seed), joined)]


# The command


class Sim(_Boxes, _Drawn):
    """Run tasks in virtual time with the controller that real lines use, and show a row for each run.

    Column "at least" is the bound of the column before it: no strategy could reach less. "Belady" is the fewest
    switches if images keep their order; compare with it if images arrive slowly. "from disk" counts switches without a
    copy in host memory. "hit ratio" is the share of stages without a switch. "scheduling" is the time of all decisions
    for an image.

    With --boxes, column "of bound" is the least possible time, divided by the time taken. "recovered" is the throughput
    after --mishap, divided by that of a cluster that always had the final boxes. "head" is the time in which an
    image's box is chosen.

    Example: coe-bench sim --board line7.yaml --device profile.json --seeds 5
    """

    context: typer.Context
    device: str = option(
        f"{', '.join(preset.names())}, a YAML file that describes a box, or a profile (.json).",
        "numa-rtx3080ti",
        metavar="LIST|all|FILE",
    )
    strategy: str = option("One or more, separated by commas.", "all", metavar="LIST|all")
    precision: str = option(
        "fp32: experts as trained. mixed: experts in the variants that a line would choose.", FULL, metavar="LIST"
    )
    doubtful: float = option(
        "With mixed: share of findings that are repeated in fp32.",
        config.ESCALATED_SHARE,
        metavar="SHARE",
        min=0,
        max=1,
    )
    warm: bool = option(
        "With mixed: start with full host memory. Default: it is empty, and fills while the disk is idle.", False
    )
    max_wait: MaxWaitOption = None
    seed: int = option("Seed of the random components and labels.", 0, min=0, max=config.MAX_SEED)
    seeds: int = option("Number of seeds to run, from --seed on.", 1, min=1, max=1000)
    json_to: JsonOption = None

    def run(self) -> None:
        from coe.lab.cluster_bench import Scene
        from coe.lab.machine import machine_named
        from coe.lab.simulated import all_contenders, contender

        drawing, several = self.drawing(), self.several()
        if several is None:
            refuse(self.context, "boards mishap", "is for several boxes, and there is no --boxes")
        else:
            refuse(self.context, "precision doubtful foresight warm seeds", "is for one box, and --boxes names several")
            if several.boards:
                drawn_by = "is for tasks, and --boards draws the images of all boards by their counts"
                refuse(self.context, "task order tail", drawn_by, by_default=False)
        if drawing.board is not None:
            refuse(
                self.context,
                "task boards",
                "is not for --board, whose images are drawn by its counts",
                by_default=False,
            )
        precisions = _precisions(self.precision, self.doubtful, self.warm)
        if not any(precisions):
            refuse(self.context, "doubtful", "is for --precision mixed")
        contenders = [
            contender(name)
            for name in (all_contenders() if self.strategy.strip() == "all" else words_of(self.strategy))
        ]
        max_wait_s = bench_out.heeded(seconds(self.max_wait), [each.strategy for each in contenders])
        fleets = [] if several is None else _fleets(several, drawing, self.seed)
        workloads = [workload for workload, _ in fleets] or drawing.workloads(self.seed)
        named = preset.names() if self.device.strip() == "all" else words_of(self.device)
        machines = [machine_named(name, [workload.board for workload in workloads]) for name in named]
        check_json(self.json_to)
        _check_boxes(machines, workloads, contenders, precisions)
        if several is not None:
            scenes = [
                Scene(machine, workload, fleet, each, seed=self.seed, max_wait_s=max_wait_s)
                for machine in machines
                for workload, fleet in fleets
                for each in contenders
            ]
            _run_boxes(several, scenes, self.json_to)
            return
        sentences: dict[str, None] = {}
        number = len(machines) * len(workloads) * len(contenders) * len(precisions)
        rows: list[Row] = []
        with Progress(console=err, transient=True) as bar:
            progress = bar.add_task("simulating", total=number * self.seeds)
            for one in range(self.seed, self.seed + self.seeds):
                drawn = workloads if one == self.seed else drawing.workloads(one)
                for machine, workload, each, prepared in product(machines, drawn, contenders, precisions):
                    row = _run(machine, workload, each, prepared, one, max_wait_s, sentences)
                    rows.append(replace(row, seed=one if self.seeds > 1 else None))
                    bar.advance(progress)
        bench_out.show(rows, self.json_to)
        for sentence in sentences:
            err.print(sentence)


def _precisions(text: str, doubtful: float, warm: bool) -> list[Prepared | None]:
    """Read the precisions of runs, None for experts as trained; raises ConfigError."""
    from coe.lab.simulated import Prepared

    names = choices("--precision", text, (FULL, MIXED))
    if warm and FULL in names:
        raise ConfigError(
            "--warm fills host memory only with prepared experts; add --precision mixed, or leave --warm out"
        )
    return [None if name == FULL else Prepared(doubtful, warm) for name in names]


def _run(
    machine: SimulatedMachine,
    workload: Workload,
    contender: Contender,
    prepared: Prepared | None,
    seed: int,
    max_wait_s: float | None,
    sentences: dict[str, None],
) -> Row:
    """Run a workload on a box, and add what is said about its variants to the sentences."""
    from coe.lab.simulated import prepared_run, run_plan, simulated_run

    if prepared is None:
        return simulated_run(machine, workload, contender, seed=seed, max_wait_s=max_wait_s)
    run = prepared_run(machine, workload, contender.strategy, prepared)
    sentences.update(dict.fromkeys(run.sentences))
    named = replace(contender, name=f"{contender.name} {MIXED}")
    return run_plan(run.workload, named, run.box, seed=seed, max_wait_s=max_wait_s)


def _check_boxes(
    machines: Sequence[SimulatedMachine],
    workloads: Sequence[Workload],
    contenders: Sequence[Contender],
    precisions: Sequence[Prepared | None],
) -> None:
    """Check before a long run that all runs are possible; raises ConfigError for unknown costs or too little memory."""
    from coe.lab.simulated import prepared_run

    by_board = {workload.board.board: workload for workload in workloads}
    for machine, (name, workload), each, prepared in product(machines, by_board.items(), contenders, precisions):
        if prepared is not None:
            prepared_run(machine, workload, each.strategy, prepared)
        else:
            costs = machine.costs(workload.board)
            machine.plan(workload.board, costs, each.strategy, machine.configuration(each.configuration, name))
