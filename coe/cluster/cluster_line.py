"""A line on several boxes: a box opened on each machine, and the head of them all.

The boards of a box come from the line, its weights and references from its own store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coe.board.union import union
from coe.cluster.box import BoxWorker, Fetch
from coe.cluster.cluster_engine import ClusterEngine
from coe.cluster.decisions.expert_placement import Traffic
from coe.cluster.decisions.place_experts import needs_of
from coe.cluster.head_thread import ExpertPlacer
from coe.cluster.links import Boxes, Link, check_same
from coe.cluster.over_ray import ray_boxes
from coe.core import rule_of
from coe.errors import StoreError, list_few
from coe.inspector import line_references, precision, weights_used
from coe.inspector.line_boards import LineBoard, Register
from coe.inspector.line_options import LineOptions, say_nothing
from coe.inspector.opening import Assembly, assemble_read, kinds_of, read_boards
from coe.inspector.precision import LineCosts
from coe.inspector.settings import Settings
from coe.inspector.weights_used import expert_digests, reference_digests
from coe.store.store import Store
from coe.store.store_reader import Snapshot

_MOVE_S = 0.001
"""The time that an image is expected to take to another box; it only breaks near ties."""


@dataclass(frozen=True, slots=True)
class ClusterAssembly(Assembly):
    """A line whose devices are elsewhere, on open boxes: its costs and pools are those of the first box."""

    boxes: Boxes = field(kw_only=True)
    links: Sequence[Link] = field(kw_only=True)

    @property
    def budget_bytes(self) -> int:
        """The bytes that all devices of all boxes may take."""
        return sum(link.facts.budget_bytes for link in self.links)

    def start(self) -> ClusterEngine:
        """Start the head of all boxes."""
        try:
            of_boards = {
                board.key: [rule_of(board.key, name) for name in board.rules.components] for board in self.boards
            }
            needs = needs_of(self.rules, of_boards, self.costs, self.options.strategy.pooled(self.plan))
            placer = ExpertPlacer(needs, Traffic(_MOVE_S, self.options.inbox), self.options.strategy)
            watchers, say = self.options.watchers, self.options.say
            return ClusterEngine(self.rules, self.boxes, self.links, placer, watchers=watchers, say=say)
        except BaseException:
            self.boxes.close()
            raise


def assemble(config: LineOptions) -> ClusterAssembly:
    """Open a box on each machine of a cluster.

    Raises ConfigError, RulesError or StoreError; a sentence about a box names it.
    """
    assert config.cluster is not None
    # Images bring no references of the rules along: each box has them.
    read = [replace(board, references={}) for board in read_boards(config, config.boards)]
    # What can be pickled.
    experiment = replace(config.experiment, make_boxes=None)
    without_user = config.but(cluster=None, experiment=experiment, watchers=(), say=say_nothing)
    boxes = (config.experiment.make_boxes or ray_boxes)(
        config.cluster, BoxOrder(without_user, tuple(read)).open, config.say
    )
    try:
        links = boxes.open()
        for link in links[1:]:
            check_same(links[0], link)
        register = Register(config.precision)
        boards = tuple(register.enrol(board, alone=len(read) == 1) for board in read)
        return _assembly(config, boards, register, boxes, links)
    except BaseException:
        boxes.close()
        raise


def _assembly(
    config: LineOptions, boards: tuple[LineBoard, ...], register: Register, boxes: Boxes, links: Sequence[Link]
) -> ClusterAssembly:
    costs, plan = links[0].facts.costs, links[0].facts.plan
    joined = union([board.member for board in boards])
    store = Snapshot(config.store, {})
    store.take(register.manifests, register.places)
    return ClusterAssembly(
        config,
        boards,
        register,
        precision.apply_choice(joined, costs.choice),
        kinds_of(config, joined),
        Settings(min(link.facts.memory_bytes for link in links), {}),
        store,
        {},
        costs,
        plan,
        {},
        {},
        boxes=boxes,
        links=links,
    )


@dataclass(frozen=True, slots=True)
class BoxOrder:
    """The config of a line, and its boards as they lie on the disk of the line."""

    config: LineOptions
    boards: tuple[LineBoard, ...]

    def open(self, id: str, costs: LineCosts | None, fetch: Fetch) -> BoxWorker:
        """Make a box on this machine; with the `costs` of another box, or those of the config, nothing is measured.

        The store lies where the line's store lies; if nothing is there, where `Store()` finds it. Raises ConfigError,
        RulesError or StoreError, too if weights or references are not those of the line.
        """
        store = self.config.store if self.config.store.root.is_dir() else Store()
        experiment = self.config.experiment
        config = self.config.but(store=store, experiment=replace(experiment, costs=costs or experiment.costs))
        boards = [_with_own_weights(config, board) for board in self.boards]
        return BoxWorker(id, assemble_read(config, boards), fetch)


def _with_own_weights(config: LineOptions, board: LineBoard) -> LineBoard:
    """Return a board with the manifests and references of this machine; raises StoreError if they are others."""
    rules, store = board.rules, config.store
    manifests = weights_used.read_manifests(rules, store)
    ours = expert_digests(rules, board.manifests, config.precision)
    here = expert_digests(rules, manifests, config.precision)
    others = [expert for expert, digest in ours.items() if here[expert] != digest]
    theirs = reference_digests(rules, store)
    others += [f"reference {id}" for id, digest in board.reference_digests.items() if theirs.get(id) != digest]
    if others:
        few = list_few((f"'{name}'" for name in others), 3)
        raise StoreError(
            f"in {store.root}, {few} of board '{rules.board}' are not those of the line; copy the line's store there"
        )
    return replace(board, manifests=manifests, references=line_references.load(rules, store))
