"""A device that only obeys: what lies on it by the commands alone, without a look at the books."""

from dataclasses import dataclass, field

from coe.scheduler.costs import CostTable
from coe.scheduler.events import Command, Event, Evict, Load, Loaded, LoadFailed, Lost
from coe.testing import VirtualLine


@dataclass
class ObeyingPool:
    """Experts and bodies of one pool; it proves that nothing is missing, and that nothing stays that nobody needs."""

    device: str
    costs: CostTable
    loads: dict[str, Load] = field(default_factory=dict)
    experts: dict[str, str | None] = field(default_factory=dict)
    """By expert, the body that it runs on."""
    bodies: set[str] = field(default_factory=set)

    def obey(self, command: Load | Evict) -> None:
        """Begin a load, or drop an expert and a body: one of them may not be there, but not both."""
        if isinstance(command, Load):
            assert command.expert not in self.loads
            assert command.expert not in self.experts
            body = self.costs.of(self.device, command.expert, command.variant).body
            assert command.body == (body.id if body is not None and body.id not in self.bodies else None)
            self.loads[command.expert] = command
            return
        assert command.expert in self.experts or command.body is not None
        self.experts.pop(command.expert, None)
        if command.body is not None:
            assert command.body not in self.experts.values()
            self.bodies.remove(command.body)

    def end(self, event: Loaded | LoadFailed) -> None:
        """End a load: with its body, unless that is in place."""
        load = self.loads.pop(event.expert)
        body = self.costs.of(self.device, load.expert, load.variant).body
        if isinstance(event, Loaded):
            self.bodies |= {load.body} - {None}
            assert body is None or body.id in self.bodies
            self.experts[load.expert] = body.id if body is not None else None

    def check_idle(self) -> None:
        """Prove that each body has an expert."""
        assert not self.loads
        assert self.bodies == set(self.experts.values()) - {None}


class Obeyed:
    """Mixed into a `VirtualLine`: proves that commands are right for devices that only obey."""

    places: dict[str, ObeyingPool]

    def observe(
        self: VirtualLine, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0
    ) -> None:
        """Let the pools obey. A device that is lost holds nothing."""
        super().observe(event, commands, now, control_s)
        places = self.__dict__.setdefault(
            "places", {id: ObeyingPool(pool.device, self.costs) for id, pool in self.controller.pools.items()}
        )
        if isinstance(event, Lost):
            for id in [id for id, place in places.items() if place.device == event.device]:
                del places[id]
        elif isinstance(event, Loaded | LoadFailed) and event.pool in places:
            places[event.pool].end(event)
        for command in commands:
            if isinstance(command, Load | Evict) and command.pool in places:
                places[command.pool].obey(command)

    def check_idle(self) -> None:
        """Prove that each body in place has an expert, and that the books say what is there."""
        for id, place in self.places.items():
            place.check_idle()
            pool = self.controller.pools[id]
            assert set(pool.by_arrival()) == set(place.experts)
