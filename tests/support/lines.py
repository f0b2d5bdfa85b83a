"""Boards, costs and lines of a few letters: component `A` is inspected by expert `a`, and so on."""

from dataclasses import replace

from coe.board.router import Router
from coe.board.union import Member, union
from coe.scheduler.costs import Cost
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.testing import Troubles, VirtualLine, pools_of, rules_from

ENGINE = ("coserve", "late-binding")
"""The strategies of the engine; `test_other_systems.py` has those of the laboratory."""


def board(counts, follows=None):
    """Make a board of components by upper-case letter; `follows` says what an expert's "ok" leads to.

    Each expert knows the labels ok and bad; bad is NG, ok is OK or what follows, and "ok" has the share 1.
    """
    follows = dict(follows or {})
    names = dict.fromkeys([letter.lower() for letter in counts])
    names |= dict.fromkeys(letter for text in follows.values() for letter in text if letter.isalpha())
    lines = ["board: test", "experts:"]
    for name in [*names]:
        then = follows.get(name, "OK")
        judging = f"labels: [ok, bad], reject: [bad], shares: {{ok: 1}}, then: {{ok: {then}}}"
        lines.append(f"  {name}: {{kind: k, input: 8, {judging}}}")
    lines.append("components:")
    lines += [f"  {letter}: {{count: {count}, inspect: {letter.lower()}}}" for letter, count in counts.items()]
    return rules_from("\n".join(lines))


def stopping(rules):
    components = {name: replace(component, stop_at_ng=True) for name, component in rules.components.items()}
    return replace(rules, router=Router(components, rules.router.escalations))


def cost(**changes):
    """An expert of 10 bytes that loads in 1 s; a batch of n takes 0.2 + 0.1 n seconds and a byte for each image."""
    return Cost(
        **{
            "per_image_s": 0.1,
            "base_s": 0.2,
            "load_s": 1.0,
            "weights_bytes": 10,
            "activation_bytes": 1,
            "max_batch": 4,
            **changes,
        }
    )


def line_of(
    rules, capacity, *, executors=1, workspace=4, costs=None, bad_loads=None, bad_stages=frozenset(), **options
):
    """A line whose experts all cost the same but for those in `costs`; `capacity` is that of each executor."""
    prices = {name: cost() for name in rules.experts} | dict(costs or {})
    plan = pools_of(executors, capacity, workspace)
    return VirtualLine(rules, prices, plan, troubles=Troubles(bad_loads or {}, bad_stages), **options)


def plan_of(devices, capacity, workspace=4):
    """One executor of a device, with its own pool, for each name."""
    return Plan(
        tuple(PoolSpec(f"{device}0", device, capacity, workspace) for device in devices),
        tuple(ExecutorSpec(f"{device}0", device, f"{device}0") for device in devices),
    )


def arrive(line, at_s, components):
    """Let one image of each letter arrive, in this order, at one time."""
    return [line.arrive(at_s, component) for component in components]


def inspect(line, *images):
    """Let images arrive, one of each letter at each time, and run the line until all are answered."""
    for at_s, components in images:
        arrive(line, at_s, components)
    line.run()
    return line


def log_of(line, *images, without="reply", after=0.0):
    """The log from a time on, without what begins with a word; `images`, if there are any, are inspected before."""
    if images:
        inspect(line, *images)
    return [(when, what) for when, what in line.log if when >= after and not what.startswith(without)]


def said(line, word="", after=10.0):
    """What the log says from a time on without its times, if it has a word."""
    return [what for when, what in line.log if when >= after and word in what and not what.startswith("reply")]


def joined(boards, shared=(), *, ending=()):
    """Join boards by their keys: an expert `x` of board A is `A/x` on the line, or `x` if all boards share it.

    No more images come of the boards of `ending`.
    """
    return union(
        [
            Member(
                key,
                rules,
                {
                    name: expert if name in shared else replace(expert, id=f"{key}/{name}")
                    for name, expert in rules.experts.items()
                },
                0.0 if key in ending else 1.0,
            )
            for key, rules in boards.items()
        ]
    )
