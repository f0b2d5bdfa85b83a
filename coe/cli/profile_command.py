"""`coe-profile`: measures this machine once; from then on `coe-inspect` and `Inspector` use the profile."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, TimeElapsedColumn, TimeRemainingColumn

from coe import config
from coe.board import rules
from coe.cli.common import application, err, out, point_out, run, show
from coe.cli.console import Progress, styled, words
from coe.cli.options import OnLine, Share, Size, add, option
from coe.config import counted, format_bytes
from coe.errors import ConfigError, did_you_mean
from coe.inspector import profile
from coe.inspector.line_options import Door, LineOptions
from coe.inspector.profile import BoardProfile, Fingerprint, KindProfile, Profile
from coe.profiler import profile_file

if TYPE_CHECKING:
    from coe.profiler.site import ProfiledSite

_SHOWN = 10
"""How many experts the tables of usage show."""


class Measure(OnLine):
    """Measure experts on this machine, then choose its executors and the split of its memory for a board.

    coe-inspect uses the profile from then on. To resume after an interruption, repeat the command. Another board is
    added to the profile. Stop other programs first.

    Example: coe-profile --board demo --images build/demo/images --memory 150MB --quick
    """

    door = Door.PROFILE

    board: str | None = option("Board: a name (A, demo, ...) or a YAML file of rules.")
    images_at: Path | None = option("Sample images of the board. Default: generated images.", None, "--images")
    quick: bool = option("Take about one minute instead of ten; the figures are less exact.", False)
    faithful: int | None = option(
        "Split memory as in CoServe's paper, which draws the split at random, with this seed.",
        min=0,
        max=config.MAX_SEED,
        metavar="SEED",
    )
    on_machine: bool = option(
        "Compare configurations by real runs, which take long, or by simulation with measured costs. Real runs "
        "confirm the choice in both cases.",
        False,
        "--on-machine/--simulate",
    )
    to: Path | None = option(
        "File for the profile. Default: where coe-inspect looks for it.", None, "--out", metavar="FILE"
    )
    show: bool = option("Print the existing profile and draw its curves; measure nothing.", False)
    plot: Path | None = option("File for the curves. Default: a .png in the profile's folder.", metavar="FILE")

    def run(self) -> None:
        place = self.to or profile.place()
        if self.show:
            stored = profile.load(place)
            if changed := stored.machine.changes(Fingerprint.here()):
                point_out("warning", f"this profile is of another machine: {'; '.join(changed)}")
            _show(stored, _chosen_board(stored, self.board), place, self.plot)
            return
        if self.board is None:
            raise ConfigError("which board? give one with --board, or look at the existing profile with --show")
        board = rules.load(self.board)
        from coe.placement.run_source import pictures_of
        from coe.profiler.site import ProfiledSite

        options = LineOptions.of(board.path, **self.line)
        site = ProfiledSite(
            board,
            options.store,
            pictures_of(board, self.images_at) if self.images_at else [],
            options.memory or config.parse_bytes(config.MEMORY),
            options.device_memory,
            options.host_memory,
            options.allow_kinds,
            strategy=options.strategy,
        )
        done = _profiled(site, place, quick=self.quick, faithful=self.faithful, on_machine=self.on_machine)
        _show(done, done.boards[board.board], place, self.plot)


def _profiled(site: ProfiledSite, place: Path, *, quick: bool, faithful: int | None, on_machine: bool) -> Profile:
    """Profile a site (see `coe.profiler.profiling.profile_machine`) with a progress bar."""
    from coe.profiler import other_load, profiling

    # Checked now rather than after ten minutes.
    profile_file.writable(place)
    columns = (
        words("{task.description}", style="bold"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        printed: list[str] = []

        watch = other_load.LoadWatch()
        bar.update(task, description="checking for other programs")
        if load := watch.before():
            point_out(
                "warning",
                f"other programs keep cores busy ({load.words()}); measurements will be too slow, and the "
                "choice may be wrong. Press Ctrl-C, end these programs, and start again",
                err,
            )

        def step(what: str, done: float, total: float) -> None:
            watch.step(what)
            bar.update(task, description=what, completed=done, total=total)
            if not err.is_terminal and printed[-1:] != [what]:
                printed.append(what)
                err.print(f"{done / total:4.0%} {what}")

        def say(sentence: str) -> None:
            err.print(sentence)

        try:
            done = profiling.profile_machine(
                site,
                place=place,
                effort=profiling.QUICK if quick else profiling.THOROUGH,
                steps=profiling.ProgressSteps(say, step),
                faithful=faithful,
                on_machine=on_machine,
            )
        except BaseException:
            watch.end()
            if watch.disturbed:  # figures that are too slow would be resumed from
                profiling.unfinished(place).unlink(missing_ok=True)
                point_out("note", "other programs kept cores busy, so the next run measures everything again", err)
            raise
        watch.end()
    for what, load in watch.disturbed.items():
        point_out("warning", f"{what}: other programs kept cores busy meanwhile ({load.words()})", err)
    if watch.disturbed:
        steps = f"{len(watch.disturbed)} steps" if len(watch.disturbed) > 1 else "a step"
        again = (
            f"{steps} measured beside other programs: the figures are too slow; end these, delete {place}, and run "
            "it again"
        )
        point_out("warning", again, err)
        # Kept, because the profile is used long after this sentence is gone.
        chosen = done.boards[site.board.board].chosen
        chosen = chosen.model_copy(update={"reasons": (*chosen.reasons, again)})
        board = done.boards[site.board.board].model_copy(update={"chosen": chosen})
        done = done.model_copy(update={"boards": {**done.boards, board.board: board}})
        profile_file.save(done, place)
    return done


def _chosen_board(stored: Profile, board: str | None) -> BoardProfile:
    if not stored.boards:
        raise ConfigError("this profile has no board yet; run coe-profile --board NAME")
    if board is None:
        return next(reversed(stored.boards.values()))
    name = board if board in stored.boards else rules.load(board).board
    if name not in stored.boards:
        raise ConfigError(f"this profile has no board '{name}'{did_you_mean(name, stored.boards)}")
    return stored.boards[name]


def _show(stored: Profile, board: BoardProfile, place: Path, plot: Path | None) -> None:
    from coe.profiler.draw_profile import draw

    origin = f", made {stored.made} on {stored.machine.cores} x {stored.machine.cpu}"
    out.print(styled((str(place), "bold"), origin))
    show(list(map(_kind, stored.kinds)))
    chosen = board.chosen
    executors = ", ".join(
        f"{device}={number}" + (f" of {counted(chosen.threads[device], 'thread')}" if device in chosen.threads else "")
        for device, number in chosen.executors.items()
    )
    budgets = [(board.memory_bytes, ""), (board.device_bytes, " of the GPU"), (board.host_bytes, " for copies")]
    under = ", ".join(format_bytes(size) + words for size, words in budgets if size is not None)
    out.print()
    out.print(styled((f"board {board.board}", "bold"), f" under {under}: {executors}"))
    spaces = ", ".join(f"{format_bytes(size)} ({device})" for device, size in chosen.workspace_bytes.items())
    left = f"each pool leaves {spaces} to batches; " if spaces else ""
    out.print(f"{left}the rest has room for about {chosen.loaded_experts} experts of mean size")
    for reason in chosen.reasons:
        out.print(f"- {reason}")
    show(
        [
            {
                "most used": row.expert,
                "by rules": Share(row.by_rules),
                "by images": None if row.by_images is None else Share(row.by_images),
                "memory score": round(row.memory_score, 2),
            }
            for row in board.usage[:_SHOWN]
        ]
    )
    for row in [row for row in board.usage if row.differs][:_SHOWN]:
        shares = f"{row.by_rules:.1%} by the rules, {row.by_images:.1%} of the images, which is used"
        out.print(f"{row.expert}: {shares}")
    path = draw(stored, board.board, plot or place.with_suffix(".png"))
    err.print(f"drew {path}")


def _kind(kind: KindProfile) -> dict[str, Any]:
    return {
        "kind": f"{kind.kind} {kind.input_size} px",
        "threads": kind.threads,
        "way": f"{kind.device} {kind.backend} {kind.precision}",
        "K": f"{1e3 * kind.line.per_image_s:.1f} ms",
        "B": f"{1e3 * kind.line.base_s:.1f} ms",
        "off": Share(kind.line.error),
        "max batch": kind.max_batch,
        "weights": Size(kind.weights_bytes),
        "an image": Size(kind.activation_bytes),
        "load": f"{1e3 * kind.load_s:.0f} ms" + ("" if kind.load_cold else " cached"),
    }


app = application("Measure this machine for a board; once is enough.")
add(app, Measure)
main = partial(run, app)
