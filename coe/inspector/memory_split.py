"""The split of a memory budget: images under way, then a pool for each executor, of experts and of activations."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from coe import config
from coe.config import format_bytes
from coe.errors import BoardsClash, ConfigError
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec, executor_id


def plan(
    executors: Mapping[str, int],
    memory_bytes: int,
    experts: Iterable[str],
    costs: CostTable,
    workspaces: Mapping[str, int] | None = None,
    *,
    with_images: bool = False,
    fixed_bytes: int = 0,
    loaded: float | None = None,
) -> Plan:
    """Give each executor a separate pool with an equal part of the budget, as in the paper (section 4.1).

    With `with_images` a part of the budget is kept for images under way (see `inbox_bytes`). `fixed_bytes` are what
    devices need besides experts and batches. `workspaces` gives the activations' part of each pool by device; without
    it `workspace_bytes` works it out. `loaded` gives it in another way: as the memory score (see `memory_scores`) of
    the experts that all pools together hold. Raises ConfigError, naming the expert and the least budget, if an expert
    with one image does not fit.
    """
    experts = list(experts)
    count = sum(executors.values())
    images_bytes = inbox_bytes(memory_bytes) if with_images else 0
    capacity = (memory_bytes - images_bytes - fixed_bytes) // count
    pools, specs = [], []
    for device, number in executors.items():
        wanted = (workspaces or {}).get(device)
        if loaded is not None:
            sizes = {expert: costs(device, expert).weights_bytes for expert in experts}
            wanted = max(0, capacity - score_bytes(loaded / count, sizes))
        try:
            workspace = workspace_bytes(device, capacity, experts, costs, wanted)
        except TooSmall as small:
            # Rounded up, so that exactly this budget is enough.
            least = (small.least_bytes * count + fixed_bytes) / (1 - (config.INBOX_SHARE if with_images else 0))
            enough = f"{math.ceil(least / (1 << 20))}MiB"
            images = f" after {format_bytes(images_bytes)} for images under way" if images_bytes else ""
            advice = f"give at least {enough}" + (", or fewer executors" if count > 1 else "")
            raise ConfigError(
                f"a memory budget of {format_bytes(memory_bytes)} for {count} executor(s) {small}, because each has "
                f"{format_bytes(max(0, capacity))} of it{images}; {advice}"
            ) from None
        if loaded is not None and workspace != wanted:
            single = max(costs(device, expert).batch_bytes(1) for expert in experts)
            an_expert = score_bytes(1, sizes) / count
            raise ConfigError(
                f"{loaded:g} loaded experts are not possible with {format_bytes(memory_bytes)} for {count} "
                "executor(s), because each holds the largest expert and the activations of one image; give "
                f"{math.ceil(10 * max(sizes.values()) / an_expert) / 10:g} to "
                f"{math.floor(10 * (capacity - single) / an_expert) / 10:g}"
            )
        for index in range(number):
            id = executor_id(device, index)
            pools.append(PoolSpec(id, device, capacity, workspace))
            specs.append(ExecutorSpec(id, device, id))
    return Plan(tuple(pools), tuple(specs))


def with_workspaces(
    plan: Plan, experts: Iterable[str], costs: CostTable, workspaces: Mapping[str, int] | None = None
) -> Plan:
    """Return a plan whose pools leave the workspace that other experts need; nothing else changes.

    `workspaces` gives it by device, as in `plan`. Raises BoardsClash if an expert with one image does not fit.
    """
    experts, pools = list(experts), []
    for pool in plan.pools:
        wanted = (workspaces or {}).get(pool.device)
        try:
            workspace = workspace_bytes(pool.device, pool.capacity_bytes, experts, costs, wanted)
        except TooSmall as small:
            raise BoardsClash(
                f"the memory of this line {small} in its pool '{pool.id}' of {format_bytes(pool.capacity_bytes)}; "
                "open a line with more memory, or with fewer executors"
            ) from None
        pools.append(replace(pool, workspace_bytes=workspace))
    return replace(plan, pools=tuple(pools))


def inbox_bytes(memory_bytes: int) -> int:
    """Return the part of a memory budget that is kept for images under way; the pools get the rest."""
    return min(config.INBOX_BYTES, int(memory_bytes * config.INBOX_SHARE))


def waiting_bytes(memory_bytes: int, given_bytes: int | None = None) -> int:
    """Return the bytes that images may take that wait, with their first inputs: half of the images' part of a budget.

    A quarter each is for those being decoded and for inputs made ahead for later experts (`line_devices.decoding`).
    `given_bytes` is the size of each of the three instead. Decoding frees its memory before the image waits, so no part
    needs another part's bytes.
    """
    return 2 * (inbox_bytes(memory_bytes) // 4) if given_bytes is None else given_bytes


class TooSmall(ConfigError):
    """A pool is too small for `least_bytes`: its largest expert with the activations of one image."""

    def __init__(self, message: str, least_bytes: int) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes


def workspace_bytes(
    device: str, capacity_bytes: int, experts: Collection[str], costs: CostTable, wanted_bytes: int | None = None
) -> int:
    """Return the part of a pool that is set aside for activations.

    On processors of limited computing power the largest useful batch is small, so its activations are set aside and
    the rest holds experts (paper section 4.4). The part is at most `config.WORKSPACE_SHARE`, unless `wanted_bytes` is
    given or one image needs more. Raises TooSmall if the largest expert with one image does not fit.
    """
    device_costs = [costs(device, expert) for expert in experts]
    single = max(cost.batch_bytes(1) for cost in device_costs)
    useful = max(cost.batch_bytes(cost.useful_batch) for cost in device_costs)
    largest = max(experts, key=lambda expert: costs(device, expert).weights_bytes)
    weights = costs(device, largest).weights_bytes
    if weights + single > capacity_bytes:
        raise TooSmall(
            f"does not hold expert '{largest}' ({format_bytes(weights)}) and the activations of one image "
            f"({format_bytes(single)})",
            weights + single,
        )
    wanted = min(useful, int(capacity_bytes * config.WORKSPACE_SHARE)) if wanted_bytes is None else wanted_bytes
    return min(max(single, wanted), capacity_bytes - weights)


def memory_scores(bytes_by_expert: Mapping[str, int]) -> dict[str, float]:
    """Return the footprint of each expert as its memory score (paper section 4.5): 1 is the mean of the board.

    The paper does not say by which value it normalises footprints. With the mean, a budget given as a score is a number
    of experts, which the paper's windows count; with the smallest footprint it would not be.
    """
    mean = _mean_bytes(bytes_by_expert)
    return {expert: size / mean for expert, size in bytes_by_expert.items()}


def score_bytes(score: float, bytes_by_expert: Mapping[str, int]) -> int:
    """Return the bytes that a memory score stands for, the inverse of `memory_scores`; raises ConfigError."""
    if not (math.isfinite(score) and score > 0):
        raise ConfigError(f"a memory score of {score:g} holds no expert; 1 is the size of the board's mean expert")
    return round(score * _mean_bytes(bytes_by_expert))


def _mean_bytes(bytes_by_expert: Mapping[str, int]) -> float:
    total = sum(bytes_by_expert.values())
    if total <= 0:
        raise ValueError("experts without weights have no memory scores")
    return total / len(bytes_by_expert)
