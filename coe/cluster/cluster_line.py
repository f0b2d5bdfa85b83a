"""A line on several boxes: a box opened on each machine, and the head of them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coe.board.union import union
from coe.cluster.box_order import BoxOrder, quiet
from coe.cluster.cluster_engine import ClusterEngine
from coe.cluster.decisions.expert_placement import Traffic
from coe.cluster.decisions.needs import needs_of
from coe.cluster.head_thread import ExpertPlacer
from coe.cluster.links import Link, check_same
from coe.cluster.over_ray import ray_boxes
from coe.core import rule_of
from coe.inspector import precision
from coe.inspector.line_boards import LineBoard, Register
from coe.inspector.line_costs import LineCosts
from coe.inspector.line_options import LineOptions
from coe.inspector.opening import Assembly, Lineup, kinds_of, read_boards
from coe.inspector.precision import VariantChoice
from coe.inspector.settings import Settings
from coe.inspector.starting import Started
from coe.store.snapshot import Snapshot

_MOVE_S = 0.001
"""The time that an image is expected to take to another box; it only breaks near ties."""


def start(config: LineOptions) -> Started:
    """Open a box on each machine of a cluster, and start the head of them all.

    Raises ConfigError, RulesError or StoreError; a sentence about a box names it.
    """
    assert config.cluster is not None
    # Images bring no references of the rules along: each box has them.
    read = [replace(board, references={}) for board in read_boards(config, config.boards)]
    boxes = (config.make_boxes or ray_boxes)(config.cluster, BoxOrder(quiet(config), tuple(read)), config.say)
    try:
        links = boxes.open()
        for link in links[1:]:
            check_same(links[0], link)
        register = Register(config.precision)
        boards = tuple(register.enrol(board, alone=len(read) == 1) for board in read)
        assembly = _assembly(config, boards, register, links)
        pooled = config.strategy.pooled(assembly.plan)
        needs = needs_of(assembly.rules, _rules_by_board(boards), assembly.costs, pooled)
        placer = ExpertPlacer(needs, Traffic(_MOVE_S, config.inbox), config.strategy)
        engine = ClusterEngine(assembly.rules, boxes, links, placer, watchers=config.watchers, say=config.say)
    except BaseException:
        boxes.close()
        raise
    return Started(assembly, engine, sum(link.facts.budget_bytes for link in links))


def _assembly(
    config: LineOptions, boards: tuple[LineBoard, ...], register: Register, links: Sequence[Link]
) -> Assembly:
    """Return a line whose devices are elsewhere: its costs and pools are those of the first box."""
    facts = links[0].facts
    assert isinstance(facts.costs, LineCosts)
    joined = union([board.member for board in boards])
    choice = VariantChoice(facts.variants, facts.escalate_below)
    rules = precision.applied(joined, choice)
    store = Snapshot(config.store, {})
    store.take(register.manifests, register.places)
    return Assembly(
        config,
        boards,
        register,
        rules,
        kinds_of(config, joined),
        Settings(min(link.facts.memory_bytes for link in links), {}),
        store,
        {},
        Lineup(rules, facts.costs, choice),
        facts.plan,
        {},
        {},
        0,
    )


def _rules_by_board(boards: Sequence[LineBoard]) -> Mapping[str, list[str]]:
    return {board.key: [rule_of(board.key, name) for name in board.member.rules.components] for board in boards}
