"""What several boxes are worth, and what the way to them costs, on this machine.

    python -m apps.cluster_speed --machines 1                               # what the way to a box costs
    python -m apps.cluster_speed --machines 2 --memory 300MB --disk 60MB/s  # two boxes, each with a slow disk

Starts a Ray cluster of several nodes on this machine, opens a line without it and a line on it, and lets both inspect
the same pictures in turn. The boxes share this machine's processors, so only what the memories and disks of several
boxes are worth can show. The experts have random weights; verdicts are compared all the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import psutil
import typer

from coe import Inspector, Picture
from coe.cli.common import application, out, run
from coe.core import Verdict
from coe.trials.picture_forms import PictureForm
from coe.trials.synthetic import synthetic_board, synthetic_pictures

app = application("Several boxes of a Ray cluster on this machine against one line without it.")
STORE_BYTES = 100 << 20


@contextmanager
def cluster_of(machines: int) -> Iterator[str]:
    """Start a Ray cluster of so many nodes on this machine, of which the first is this process's; give its address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(machines - 1):
            cluster.add_node(**node)
        yield cluster.address
    finally:
        cluster.shutdown()


class Way:
    """A line, its figures round by round, and its verdicts of the last round."""

    def __init__(self, name: str, line: Inspector) -> None:
        self.name, self._line = name, line
        self.rates: list[float] = []
        """Images a second."""
        self.cpu_ms: list[float] = []
        """Milliseconds of processors for an image: of this process, of Ray's, and of the boxes."""
        self.verdicts: dict[str, Verdict | None] = {}
        line.ready()

    def inspect(self, pictures: list[Picture]) -> None:
        """Inspect pictures, and record how long that took."""
        began, began_cpu_s = time.perf_counter(), _cpu_s()
        self.verdicts = {result.request.image: result.verdict for result in self._line.stream(pictures)}
        self.rates.append(len(pictures) / (time.perf_counter() - began))
        self.cpu_ms.append(1e3 * (_cpu_s() - began_cpu_s) / len(pictures))

    @property
    def switches(self) -> int:
        """The switches so far."""
        return self._line.metrics().switches


def _cpu_s() -> float:
    """Return the processor seconds of this process and all that it started."""
    total = 0.0
    for process in (here := psutil.Process(), *here.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


@app.command()
def measure(  # noqa: PLR0913
    machines: Annotated[int, typer.Option(min=1, help="How many nodes the cluster has.")] = 1,
    experts: Annotated[int, typer.Option(min=1, help="How many experts the board has.")] = 12,
    kind: Annotated[str, typer.Option(help="The kind of the experts.")] = "resnet18",
    input_size: Annotated[int, typer.Option("--input", help="Side of their square input in pixels.")] = 64,
    images: Annotated[int, typer.Option(min=1, help="Images in a round.")] = 300,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each line; the first does not count.")] = 6,
    memory: Annotated[str, typer.Option(help="Memory of each box.")] = "2GiB",
    disk: Annotated[str | None, typer.Option(help="Bytes a second of each box's disk, as 60MB/s.")] = None,
    work: Annotated[Path, typer.Option(help="Folder for the weights.")] = Path("build/cluster"),
) -> None:
    """Print the figures of both lines, and their ratios, round by round and in the median."""
    board, store = synthetic_board(work, kind=kind, experts=experts, input_size=input_size, seed=0, files=3)
    pictures = synthetic_pictures(board, images, 0, PictureForm.ARRAY)

    def opened(**options: Any) -> Inspector:
        # One thread each: the lines share the processors with each other.
        return Inspector(board, store=store, memory=memory, threads=1, disk_bandwidth=disk, profile=None, **options)

    with ExitStack() as stack:
        address = stack.enter_context(cluster_of(machines))
        alone = stack.enter_context(opened())
        # With the same costs both make batches of the same sizes.
        cluster = stack.enter_context(opened(cluster=address, costs=alone.costs))
        ways = [Way("one line", alone), Way(f"{machines} over Ray", cluster)]
        for turn in range(rounds):
            for way in ways if turn % 2 else reversed(ways):
                way.inspect(pictures)
        one, several = ways
        assert one.verdicts == several.verdicts, "the verdicts differ"
        for way in ways:
            rates = ", ".join(f"{rate:.1f}" for rate in way.rates[1:])
            out.print(
                f"{way.name}: median {median(way.rates[1:]):.1f} images/s ({rates}), "
                f"{median(way.cpu_ms[1:]):.1f} ms of processors an image, {way.switches} switches"
            )
        ratios = [b / a for a, b in zip(one.rates[1:], several.rates[1:], strict=True)]
        out.print(f"images/s: {median(ratios):.3f} times ({', '.join(f'{ratio:.3f}' for ratio in ratios)})")
        out.print(f"processors: {median(several.cpu_ms[1:]) / median(one.cpu_ms[1:]):.3f} times")


def main() -> None:
    """Run `python -m apps.cluster_speed`."""
    run(app)


if __name__ == "__main__":
    main()
