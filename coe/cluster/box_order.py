"""How a box of a cluster is made: the boards come from the line, weights and references from the box's own store."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coe.cluster.box import BoxParts, BoxWorker, Fetch
from coe.cluster.messages import BoxFacts
from coe.core import rule_of
from coe.errors import StoreError
from coe.inspector import fitting, line_references
from coe.inspector.line_boards import ReadBoard
from coe.inspector.line_costs import LineCosts
from coe.inspector.line_options import LineOptions, say_nothing
from coe.inspector.opening import assembled
from coe.inspector.weights_used import expert_digests, reference_digests
from coe.scheduler.costs import CostTable
from coe.store.store import Store


def quiet(config: LineOptions) -> LineOptions:
    """Return the part of a config that boxes need, which can be pickled."""
    return config.but(cluster=None, make_boxes=None, watchers=(), say=say_nothing)


@dataclass(frozen=True, slots=True)
class BoxOrder:
    """The config of a line, and its boards as they lie on the disk of the line."""

    config: LineOptions
    boards: tuple[ReadBoard, ...]

    def open(self, id: str, costs: CostTable | None, fetch: Fetch) -> BoxWorker:
        """Make a box on this machine; with the `costs` of another box, or those of the config, nothing is measured.

        The store lies where the line's store lies; if nothing is there, where `Store()` finds it. Raises ConfigError,
        RulesError or StoreError, too if weights or references are not those of the line.
        """
        assert costs is None or isinstance(costs, LineCosts)
        store = self.config.store if self.config.store.root.is_dir() else Store()
        config = self.config.but(store=store, costs=costs or self.config.costs)
        assembly = assembled(config, [_with_own_weights(config, board) for board in self.boards])
        choice = assembly.lineup.choice
        facts = BoxFacts(
            assembly.costs,
            assembly.plan,
            choice.variants,
            choice.escalate_below,
            assembly.settings.memory_bytes,
            assembly.budget_bytes,
        )
        parts = BoxParts(
            assembly.rules,
            facts,
            assembly.devices,
            assembly.kinds,
            assembly.disk(),
            assembly.decoding(),
            config.strategy,
            config.max_wait_s,
            {
                rule_of(board.key, component): reference
                for board in assembly.boards
                for component, reference in board.read.references.items()
            },
        )
        return BoxWorker(id, parts, fetch)


def _with_own_weights(config: LineOptions, board: ReadBoard) -> ReadBoard:
    """Return a board with the manifests and references of this machine; raises StoreError if they are others."""
    rules, store = board.rules, config.store
    manifests = fitting.manifests(rules, store)
    ours = expert_digests(rules, board.manifests, config.precision)
    here = expert_digests(rules, manifests, config.precision)
    others = [expert for expert, digest in ours.items() if here[expert] != digest]
    theirs = reference_digests(rules, store)
    others += [f"reference {id}" for id, digest in board.reference_digests.items() if theirs.get(id) != digest]
    if others:
        few = ", ".join(f"'{name}'" for name in others[:3]) + (" ..." if len(others) > 3 else "")
        raise StoreError(
            f"in {store.root}, {few} of board '{rules.board}' are not those of the line; copy the line's store there"
        )
    return replace(board, manifests=manifests, references=line_references.load(rules, store))
