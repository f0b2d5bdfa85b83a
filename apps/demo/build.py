"""Make the demo board: `python -m apps.demo.build` renders its images and trains its experts into the store.

Images and experts of an earlier build are kept if recipe, renderer and seed have not changed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.progress import BarColumn, TaskID, TimeElapsedColumn

from apps.demo import work
from apps.demo.lessons import BODY
from apps.demo.production import lot, shoot, truth_file
from apps.demo.recipe import recipe, renderer
from coe.board import photo_labels, rules
from coe.board.photo_labels import Answers
from coe.cli.console import Console, Progress, words
from coe.errors import CoeError, StoreError
from coe.learn import evaluation
from coe.learn.answers import BoardExperts
from coe.pictures.photographs import Photograph
from coe.store.exam import Exam
from coe.store.store import Store

IMAGES = Path("build/demo/images")
POLARITY = "polarity"
_EXAM_SEED, _EXAM_BOARDS = 5001, 3
"""The lot whose good parts are shown to it, turned; nothing is learned or measured by it."""


@dataclass(frozen=True, slots=True)
class Edition:
    """The boards and experts to make: their seed, the number of boards, and whether experts train only for a trial."""

    seed: int = 1
    boards: int = 6
    quick: bool = False


def missing_experts(store: Store, seed: int, quick: bool) -> list[str]:
    """Return the experts whose weights are missing or came from another recipe, in the order of training."""
    names = []
    for name, expert in rules.load(work.BOARD).experts.items():
        try:
            current = store.manifest(expert.weights).source == work.source_of(name, seed, quick)
        except StoreError:
            current = False
        if not current:
            names.append(name)
    # the first detector takes longest, so it starts first
    return sorted(names, key=lambda name: (recipe(name).init is not None, -recipe(name).epochs))


def build(
    images: Path,
    store: Store,
    edition: Edition,
    *,
    force: bool = False,
    only: set[str] | None = None,
    workers: int | None = None,
    console: Console | None = None,
) -> dict[str, dict[str, float]]:
    """Render an edition's boards into `images` and train what is missing; returns the measures of what was trained.

    `only` limits the training to these experts (and leaves the others as they are), `workers` is the number of
    processes (None: one for each core). Raises CoeError if a training fails.
    """
    seed, boards, quick = edition.seed, edition.boards, edition.quick
    console = console or Console(stderr=True)
    all_experts = list(rules.load(work.BOARD).experts)
    todo = all_experts if force else missing_experts(store, seed, quick)
    todo = [name for name in todo if only is None or name in only]
    folder = images.parent / "training"
    start = {recipe(name).init for name in todo} & {BODY.id}
    if start and (force or not work.body_file(folder, seed, quick).is_file()):
        todo.insert(0, BODY.id)
    mark = f"{renderer()} seed {seed} boards {boards}"
    mark_file = work.mark_file(images)
    shoot = (
        force
        or not mark_file.is_file()
        or mark_file.read_text(encoding="ascii") != mark + "\n"
        or not truth_file(images).is_file()
    )
    if not todo and not shoot:
        console.print(f"demo board: complete ({images}, {store.root})")
        return {}
    count = workers or min(os.cpu_count() or 1, 8)
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    reports = context.Queue()
    columns = (words("{task.description:<16}"), BarColumn(), words("{task.fields[note]}"), TimeElapsedColumn())
    trained: dict[str, dict[str, float]] = {}
    with (
        ProcessPoolExecutor(count, mp_context=context, initializer=work.start, initargs=(reports,)) as pool,
        Progress(*columns, console=console) as progress,
        ending_workers(),
    ):
        under_way: dict[Future[dict[str, float] | None], str] = {}
        if shoot:
            under_way[pool.submit(work.photograph_lot, lot(boards, seed), images, mark)] = "boards"
        waiting = list(todo)
        bars: dict[str, TaskID] = {}
        while waiting or under_way:
            for name in list(waiting):
                if recipe(name, quick).init not in {*waiting, *under_way.values()}:
                    source = work.source_of(name, seed, quick)
                    job = pool.submit(work.train_expert, name, folder, store.root, seed, quick, source)
                    under_way[job] = name
                    waiting.remove(name)
            finished, _ = wait(under_way, timeout=0.2, return_when=FIRST_COMPLETED)
            _show(reports, progress, bars)
            for job in finished:
                name = under_way.pop(job)
                if error := job.exception():
                    raise error if isinstance(error, CoeError) else CoeError(f"demo board, {name}: {error}") from error
                if measures := job.result():
                    trained[name] = measures
                    if not console.is_terminal:  # a line in the place of the bars
                        console.print(f"demo board: trained {name} ({len(trained)} of {len(todo)})")
        _show(reports, progress, bars)
    return trained


def examine(store: Store) -> None:
    """Let the detector of polarity take the exam that its training does not, as `coe-experts calibrate --write` does.

    Classifiers pass turned parts on to it, so that these are OK by its word alone.
    """
    board = rules.load(work.BOARD)
    expert = board.experts[POLARITY]
    if expert.weights not in store.ids() or store.manifest(expert.weights).exam is not None:
        return
    served, (label, *_) = photo_labels.served(board.components, POLARITY), Answers.of_labels(expert).good
    places = [place for place in lot(_EXAM_BOARDS, _EXAM_SEED) if not place.defect and place.component in served]
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        shoot(places, Path(folder))
        pictures = [
            Photograph(Path(folder, one.file), one.component, name=one.file, expert=POLARITY, label=label)
            for one in places
        ]
        items = evaluation.examined(board, BoardExperts(board, store, ()), POLARITY, pictures)
    with store.changing(expert.weights) as manifest:
        store.rewrite(manifest.model_copy(update={"exam": Exam(items=items)}))


@contextmanager
def ending_workers() -> Iterator[None]:
    """End the worker processes started inside the block if it ends by an error, Ctrl-C or SIGTERM.

    The pool alone would wait for jobs of a minute, and outlive a parent that is terminated.
    """
    before = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for worker in set(multiprocessing.active_children()) - before:
            worker.terminate()
        raise


def exit_by(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an exit that passes through every `with`."""
    raise SystemExit(128 + number)


def _show(reports: queue.Queue[work.Report], progress: Progress, bars: dict[str, TaskID]) -> None:
    """Update the bars with the latest reports of the workers."""
    while True:
        try:
            report = reports.get_nowait()
        except queue.Empty:
            return
        if report.job not in bars:
            bars[report.job] = progress.add_task(report.job, note="")
        bar = bars[report.job]
        progress.update(bar, completed=report.done, total=report.total, note=report.note)
        if report.done >= report.total:
            progress.stop_task(bar)


def main(arguments: list[str] | None = None) -> None:
    """Build what the options ask for."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.build", description=__doc__)
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder for the boards' images (%(default)s)")
    parser.add_argument("--store", type=Path, help="the expert store (default: $COE_STORE, or ./store)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    parser.add_argument("--boards", type=int, default=6, help="number of boards to render (%(default)s)")
    parser.add_argument(
        "--workers", type=int, help="number of processes with one thread each (default: one for each core)"
    )
    parser.add_argument("--only", action="append", metavar="EXPERT", help="train only this expert; repeatable")
    parser.add_argument(
        "--quick", action="store_true", help="train briefly, to test the build; its experts are useless"
    )
    parser.add_argument("--force", action="store_true", help="make everything again")
    options = parser.parse_args(arguments)
    begun = time.perf_counter()
    signal.signal(signal.SIGTERM, exit_by)
    trained = build(
        options.images,
        Store(options.store),
        Edition(options.seed, options.boards, options.quick),
        force=options.force,
        only=set(options.only) if options.only else None,
        workers=options.workers,
    )
    examine(Store(options.store))
    took, cpu = time.perf_counter() - begun, sum(os.times()[:4])
    print(f"demo board ready: {len(trained)} experts trained, {took:.0f} s, {cpu:.0f} s of CPU time")
    print(f"next: coe-inspect --board demo --images {options.images}")


if __name__ == "__main__":
    main()
