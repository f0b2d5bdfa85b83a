"""Boards, costs and images as hypothesis draws them, and the lines that inspect them."""

import math
from dataclasses import dataclass, replace
from functools import cache

from hypothesis import strategies as st
from lines import ENGINE

from coe.board.rules import Rules
from coe.core import Finding
from coe.scheduler.costs import Cost
from coe.scheduler.plan import Plan
from coe.scheduler.pool import State
from coe.testing import Troubles, VirtualLine, pools_of, rules_from

LABELS = ("ok", "bad", "odd")


@dataclass
class Case:
    """A board, what its experts cost, and the images that come: (seconds, component)."""

    rules: Rules
    costs: dict[str, Cost]
    arrivals: list[tuple[float, str]]
    salt: int

    @property
    def max_wait_s(self):
        """After half of it an image goes before others, if the strategy looks at ages."""
        return (0.5, 4.0, 600.0)[self.salt % 3]

    def finding(self, request, expert):
        """Whatever the line does, an expert says the same of the same image."""
        dice = hash((self.salt, request, int(expert[1:]))) % 1000
        return Finding(expert, "fp32", LABELS[min(2, dice % 5)] if dice % 7 else "ok", (dice % 11) / 10)

    def line(self, strategy, executors, spare, evict_s, *, bad_loads=None, bad_stages=frozenset(), apart=False):
        """Build a line whose pools hold the largest expert, a batch of one and `spare` bytes more.

        If `apart`, each executor is a device of its own, with the id of its pool.
        """
        single = max(cost.batch_bytes(1) for cost in self.costs.values())
        capacity = max(cost.weights_bytes for cost in self.costs.values()) + single + spare
        workspace = min(2 * single, single + spare)
        findings = {
            (number, expert): self.finding(number, expert)
            for number in range(len(self.arrivals))
            for expert in self.rules.experts
        }
        plan = pools_of(executors, capacity, workspace)
        if apart:
            pools = tuple(replace(pool, device=pool.id) for pool in plan.pools)
            plan = Plan(pools, tuple(replace(executor, device=executor.pool) for executor in plan.executors))
        depth = 1 + self.salt % 2
        line = VirtualLine(
            self.rules,
            self.costs,
            replace(plan, executors=tuple(replace(executor, depth=depth) for executor in plan.executors)),
            strategy=strategy,
            findings=findings,
            troubles=Troubles(bad_loads or {}, bad_stages),
            evict_s=evict_s,
            max_wait_s=self.max_wait_s if strategy == "late-binding" else None,
        )
        for number, (at_s, component) in enumerate(self.arrivals):
            # Boards of three images, each due at another time; some are not to be had in time, some have passed.
            due_s = at_s + (-0.5, 0.5, 3.0, 20.0, math.inf)[(self.salt + number) % 5]
            line.arrive(at_s, component, serial=f"S{number // 3}" if number % 4 else "", due_s=due_s)
        return line


SOME_SECONDS = st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.0])
COUNTS, BATCHES, BYTES, FEW_BYTES = st.integers(1, 9), st.integers(1, 8), st.integers(1, 40), st.integers(0, 5)
SCORES = st.sampled_from([0, 0, 0.3])


@cache
def experts_from(first, count):
    """Up to three experts behind the first; made once, because to make a strategy takes longer than to draw from it."""
    return st.lists(st.sampled_from(range(first, count)), unique=True, max_size=3)


@cache
def steps_of(expert):
    return st.sampled_from([f"e{expert}", f"{{inspect: e{expert}, min_score: 0.5}}"])


@st.composite
def cases(draw):
    count = draw(st.integers(2, 12))
    lines, followed = ["board: b", "experts:"], set()
    for index in range(count):
        then = []
        for label in LABELS:
            chosen = draw(experts_from(index + 1, count)) if index + 1 < count else []
            followed.update(chosen)
            verdict = {"ok": "OK", "bad": "NG", "odd": "REVIEW"}[label]
            steps = [draw(steps_of(expert)) for expert in chosen]
            then.append(f"{label}: " + (f"[{', '.join(steps)}]" if steps else verdict))
        score = draw(SCORES)
        judging = f"labels: [ok, bad, odd], min_score: {score}, then: {{{', '.join(then)}}}"
        lines.append(f"  e{index}: {{kind: k, input: 8, {judging}}}")
    roots = [index for index in range(count) if index not in followed] + draw(
        st.lists(st.integers(0, count - 1), max_size=2)
    )
    lines.append("components:")
    for number, root in enumerate(roots):
        lines.append(f"  C{number}: {{count: {draw(COUNTS)}, inspect: e{root}}}")
    costs = {
        f"e{index}": Cost(
            per_image_s=draw(SOME_SECONDS),
            base_s=draw(SOME_SECONDS),
            load_s=draw(SOME_SECONDS),
            weights_bytes=draw(BYTES),
            activation_bytes=draw(FEW_BYTES),
            max_batch=draw(BATCHES),
            workspace_bytes=draw(FEW_BYTES),
        )
        for index in range(count)
    }
    arrivals = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0]), st.sampled_from([f"C{i}" for i in range(len(roots))])
            ),
            min_size=1,
            max_size=25,
        )
    )
    return Case(rules_from("\n".join(lines)), costs, sorted(arrivals), draw(st.integers(0, 99)))


LINE = st.tuples(st.sampled_from(ENGINE), st.integers(1, 3), st.integers(0, 90), st.sampled_from([0.0, 0.2, 2.0]))


def watch(line):
    """Let the line prove after each event that nobody idles without a reason."""
    check = line.controller.check

    def watched(*, idle=False):
        check(idle=idle)
        executors = list(line.controller.executors.values())
        for executor in executors:
            if executor.batch is None and len(executor.backlog):
                # What waits in a shared backlog may be waiting for any of those who take from it.
                sharers = [other for other in executors if other.backlog is executor.backlog]
                states = {other.pool.state(expert) for other in sharers for expert in line.board.experts}
                moves = {State.PLANNED, State.LOADING, State.LEAVING} & states
                assert moves or any(other.batch for other in sharers), f"{executor!r} waits for nothing"

    line.controller.check = watched
    return line


def answers(line):
    return {number: (result.verdict, result.error is None, result.findings) for number, result in line.results.items()}
