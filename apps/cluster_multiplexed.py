"""A line on several boxes against Ray Serve's model multiplexing, on this machine.

    python -m apps.cluster_multiplexed --machines 2 --memory 300MB --disk 60MB/s

Both run on one Ray cluster of several nodes on this machine, in turn, with the same experts, pictures, memory for
experts, disks, threads and images under way, and with our own runtime for loads and batches: only who decides differs.
Ray Serve has a replica on each node, `@serve.multiplexed` with as many models as a box's pool holds, and its usual
router. A replica runs all images that wait for the model of the oldest one together: the batches of `serve.batch`,
without its waiting time. Needs `pip install 'ray[serve]'`.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from apps.cluster_speed import cluster_of
from coe import Inspector, Picture, values
from coe.board import rules
from coe.board.image_source import ImageSource
from coe.cli.common import application, out, run
from coe.core import Expert, Result
from coe.runtime.cpu import CpuDevice
from coe.runtime.throttle import Throttle
from coe.store import kinds
from coe.store.kinds import Prepared
from coe.store.store import Store
from coe.trials.picture_forms import PictureForm
from coe.trials.synthetic import synthetic_board, synthetic_pictures

app = application("Several boxes of a Ray cluster against Ray Serve's multiplexing, on this machine.")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a replica says of an image, and how many models it has loaded so far."""

    label: str
    replica: str
    loads: int


@dataclass(eq=False)
class Model:
    """A loaded expert; its weights leave memory when nobody uses it any more."""

    expert: Expert
    pool: str


@dataclass(eq=False)
class Waiting:
    """An image that waits for its batch."""

    model: Model
    image: Prepared
    label: asyncio.Future[str]


class Replica:
    """What a replica of Ray Serve does: loads with one thread, runs batches with one, prepares pictures with two."""

    def __init__(self, board: str, store: str, disk_bytes_per_s: int | None, max_batch: int) -> None:
        self._experts, self._store = rules.load(Path(board)).experts, Store(store)
        self._kinds = {expert.kind: kinds.resolve(expert.kind) for expert in self._experts.values()}
        self._device = CpuDevice(self._store, self._kinds, 1)
        self._device.prepare(self._experts.values())
        self._throttle = None if disk_bytes_per_s is None else Throttle(disk_bytes_per_s)
        self._runner, self._loader, self._decoder = (ThreadPoolExecutor(threads) for threads in (1, 1, 2))
        self._runner.submit(self._device.enter, "executor")
        self._max_batch = max_batch
        self._waiting: list[Waiting] = []
        self._is_running = False
        self.loads = 0

    async def load(self, id: str) -> Model:
        """Load an expert, no faster than its disk."""
        self.loads += 1
        model = Model(self._experts[id], f"load{self.loads}")
        await asyncio.get_running_loop().run_in_executor(self._loader, self._read, model)
        weakref.finalize(model, self._runner.submit, self._device.evict, model.pool, model.expert)
        return model

    def _read(self, model: Model) -> None:
        began_s, least_s = time.monotonic(), 0.0
        if self._throttle is not None:
            size = self._store.path(model.expert.weights).stat().st_size
            least_s = self._throttle.delay_s(size, began_s)
        self._device.load(model.pool, model.expert)
        time.sleep(max(0.0, began_s + least_s - time.monotonic()))

    async def answer(self, model: Model, pixels: Any) -> str:
        """Return the label of an image."""
        loop = asyncio.get_running_loop()
        image = await loop.run_in_executor(self._decoder, self._prepared, model.expert, pixels)
        waiting = Waiting(model, image, loop.create_future())
        self._waiting.append(waiting)
        if not self._is_running:
            self._is_running = True
            loop.create_task(self._run()).add_done_callback(lambda task: task.result())
        return await waiting.label

    def _prepared(self, expert: Expert, pixels: Any) -> Prepared:
        return self._kinds[expert.kind].preprocess(ImageSource.of(np.asarray(pixels), "BGR").decode(), expert)

    async def _run(self) -> None:
        """Run what waits: with the oldest image all that wait for its model."""
        while self._waiting:
            model = self._waiting[0].model
            batch = [one for one in self._waiting if one.model is model][: self._max_batch]
            self._waiting = [one for one in self._waiting if one not in batch]
            images = [one.image for one in batch]
            try:
                findings = await asyncio.get_running_loop().run_in_executor(
                    self._runner, self._device.run, "executor", model.pool, model.expert, images
                )
            except Exception as error:
                for one in batch:
                    one.label.set_exception(error)
                continue
            for one, finding in zip(batch, findings, strict=True):
                one.label.set_result(finding.label)
        self._is_running = False


def served(models: int, replicas: int, under_way: int, arguments: tuple[Any, ...]) -> Any:
    """Start the replicas; return the handle that images go to."""
    from ray import serve

    class Multiplexed:
        def __init__(self) -> None:
            self.replica = Replica(*arguments)

        @serve.multiplexed(max_num_models_per_replica=models)
        async def model(self, id: str) -> Model:
            return await self.replica.load(id)

        async def __call__(self, pixels: Any) -> Answer:
            model = await self.model(serve.get_multiplexed_model_id())
            label = await self.replica.answer(model, pixels)
            return Answer(label, serve.get_replica_context().replica_tag, self.replica.loads)

    serve.start(http_options={"location": "NoServer"})
    deployment = serve.deployment(
        num_replicas=replicas, max_ongoing_requests=under_way, ray_actor_options={"num_cpus": 1}
    )(Multiplexed)
    return serve.run(deployment.bind())


@dataclass
class Figures:
    """The figures of a way, round by round."""

    name: str
    rates: list[float] = field(default_factory=list)
    """Images a second."""
    p50_s: list[float] = field(default_factory=list)
    p99_s: list[float] = field(default_factory=list)
    switches: list[int] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)

    def note(self, took_s: float, waits_s: Sequence[float], switches: int) -> None:
        """Record a round."""
        self.rates.append(len(waits_s) / took_s)
        self.p50_s.append(float(np.quantile(waits_s, 0.5)))
        self.p99_s.append(float(np.quantile(waits_s, 0.99)))
        self.switches.append(switches)

    def show(self) -> None:
        """Print the medians, without the first round."""
        rates = ", ".join(f"{rate:.1f}" for rate in self.rates[1:])
        out.print(
            f"{self.name}: median {median(self.rates[1:]):.1f} images/s ({rates}), p50 {median(self.p50_s[1:]):.2f} s, "
            f"p99 {median(self.p99_s[1:]):.2f} s, {median(self.switches[1:]):g} switches a round"
        )


def by_line(line: Inspector, pictures: list[Picture], figures: Figures) -> None:
    """Inspect pictures on the line; a full line makes its caller wait."""
    before, waits_s, began_s = line.metrics().switches, list[float](), time.perf_counter()

    def taken(future: Future[Result], since_s: float) -> None:
        result = future.result()
        waits_s.append(time.perf_counter() - since_s)
        figures.labels[result.request.image] = result.findings[0].label

    for picture in pictures:
        future = line.submit(picture.image, picture.component, name=picture.name)
        since_s = time.perf_counter()
        future.add_done_callback(lambda future, since_s=since_s: taken(future, since_s))  # type: ignore[misc]
    line.drain()
    figures.note(time.perf_counter() - began_s, waits_s, line.metrics().switches - before)


def by_serve(handle: Any, pictures: list[Picture], under_way: int, figures: Figures, loads: dict[str, int]) -> None:
    """Inspect pictures with Ray Serve, as many at a time as the line has under way."""
    before, waits_s = sum(loads.values()), list[float]()

    async def inspect(picture: Picture, room: asyncio.Semaphore) -> None:
        try:
            since_s = time.perf_counter()
            expert = "e" + picture.component.removeprefix("C")
            answer = await handle.options(multiplexed_model_id=expert).remote(picture.image)
            waits_s.append(time.perf_counter() - since_s)
        finally:
            room.release()
        figures.labels[picture.name] = answer.label
        loads[answer.replica] = max(loads.get(answer.replica, 0), answer.loads)

    async def all_of_them() -> None:
        room, tasks = asyncio.Semaphore(under_way), []
        for picture in pictures:
            await room.acquire()
            tasks.append(asyncio.ensure_future(inspect(picture, room)))
        await asyncio.gather(*tasks)

    began_s = time.perf_counter()
    asyncio.run(all_of_them())
    figures.note(time.perf_counter() - began_s, waits_s, sum(loads.values()) - before)


@app.command()
def measure(  # noqa: PLR0913
    machines: Annotated[int, typer.Option(min=1, help="How many nodes the cluster has.")] = 2,
    experts: Annotated[int, typer.Option(min=1, help="How many experts the board has.")] = 12,
    kind: Annotated[str, typer.Option(help="The kind of the experts.")] = "resnet18",
    input_size: Annotated[int, typer.Option("--input", help="Side of their square input in pixels.")] = 64,
    images: Annotated[int, typer.Option(min=1, help="Images in a round.")] = 300,
    under_way: Annotated[int, typer.Option(min=1, help="Images under way at most.")] = 64,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each; the first does not count.")] = 5,
    memory: Annotated[str, typer.Option(help="Memory of each box.")] = "300MB",
    disk: Annotated[str | None, typer.Option(help="Bytes a second of each box's disk, as 60MB/s.")] = None,
    strategy: Annotated[str, typer.Option(help="The line's strategy.")] = "line",
    work: Annotated[Path, typer.Option(help="Folder for the weights.")] = Path("build/cluster"),
) -> None:
    """Print the figures of both, round by round and in the median."""
    board, store = synthetic_board(work.absolute(), kind=kind, experts=experts, input_size=input_size, seed=0, files=3)
    pictures = synthetic_pictures(board, images, 0, PictureForm.ARRAY)
    with ExitStack() as stack:
        address = stack.enter_context(cluster_of(machines))
        import ray

        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        stack.callback(ray.shutdown)
        line = stack.enter_context(
            Inspector(
                board,
                store=store,
                memory=memory,
                threads=1,
                disk_bandwidth=disk,
                profile=None,
                inbox=under_way,
                strategy=strategy,
                cluster="auto",
            )
        )
        line.ready()
        # As many models as the bytes of a box's pools hold, without what batches need.
        pool_bytes = sum(pool.capacity_bytes - pool.workspace_bytes for pool in line.plan.pools)
        weights_bytes = store.path(next(iter(line.rules.experts.values())).weights).stat().st_size
        models = max(1, pool_bytes // weights_bytes)
        arguments = (str(board), str(store.root), None if disk is None else values.bandwidth("disk", disk), 32)
        handle = served(models, machines, under_way, arguments)
        ours, theirs = Figures(f"line on {machines} boxes"), Figures(f"Ray Serve, {models} models a replica")
        loads: dict[str, int] = {}
        for turn in range(rounds):
            for is_ours in (turn % 2 == 0, turn % 2 == 1):
                if is_ours:
                    by_line(line, pictures, ours)
                else:
                    by_serve(handle, pictures, under_way, theirs, loads)
        assert ours.labels == theirs.labels, "the labels differ"
        ours.show()
        theirs.show()
        ratios = [b / a for a, b in zip(theirs.rates[1:], ours.rates[1:], strict=True)]
        out.print(f"images/s: {median(ratios):.2f} times ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


def main() -> None:
    """Run `python -m apps.cluster_multiplexed`."""
    run(app)


if __name__ == "__main__":
    main()
