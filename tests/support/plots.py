"""Boards that come and go at any time, as hypothesis draws them."""

import math
from collections import Counter
from dataclasses import dataclass

from hypothesis import strategies as st
from lines import board, cost, joined

from coe.scheduler.events import Reply
from coe.testing import VirtualLine, pools_of

BOARDS = {
    "A": board({"R": 4, "C": 1, "U": 1}, {"u": "[r, x]"}),
    "B": board({"R": 1, "D": 2}, {"r": "x"}),
    "C": board({"C": 3, "U": 1}, {"c": "u", "u": "x"}),
}
"""Three boards that use the same names for components and experts."""
COSTS = {"r": cost(), "c": cost(weights_bytes=14), "u": cost(activation_bytes=3), "d": cost(load_s=2.0), "x": cost()}
SHARED = ("x",)
"""The expert that is the same on all boards; others of one name differ."""


@dataclass
class Image:
    """An image: when the line accepted it, how long it was decoded, its board and component."""

    at_s: float
    decoded_s: float
    board: str
    component: str


@dataclass
class Plot:
    """What happens on a line: images, and the boards from given times on."""

    images: list[Image]
    changes: list[tuple[float, list[str]]]
    first: list[str]
    salt: int

    def label(self, number, expert):
        """Whatever the line does, an expert says the same of the same image."""
        return "bad" if (self.salt + 7 * number + 3 * ord(expert)) % 5 == 0 else "ok"


class ChangingLine(VirtualLine):
    """A line that lets go of a board once the last image that it accepted of it has its result."""

    left: Counter[str]
    boards: list[str]

    def begin(self, plot):
        self.boards, self.left, self._of = plot.first, Counter(), {}
        for number, image in enumerate(plot.images):
            # Physical boards of up to four parts, some of them due.
            due_s = image.at_s + (math.inf, 3.0)[number // 4 % 2]
            id = self.arrive(
                image.at_s + image.decoded_s,
                image.component,
                board=image.board,
                serial=f"S{number // 4}",
                refdes=image.component,
                due_s=due_s,
            )
            self._of[id] = image
            self._simulator._when(image.at_s, lambda key=image.board: self.left.update([key]))
        for at_s, boards in plot.changes:
            self._simulator._when(at_s, lambda boards=boards: self._turn_to(boards))

    def observe(self, event, commands, now, control_s=0.0):
        """Count the images of each board that have their result."""
        super().observe(event, commands, now, control_s)
        for command in commands:
            if isinstance(command, Reply):
                key = self._of[command.result.request.id].board
                self.left[key] -= 1
                if not self.left[key] and key not in self.boards:
                    self._turn_to(self.boards)

    def _turn_to(self, boards):
        self.boards = boards
        ending = [key for key, images in self.left.items() if images and key not in boards]
        rules = joined({key: BOARDS[key] for key in [*boards, *ending]}, SHARED, ending=ending)
        self.change(self.now, rules, parts=dict.fromkeys([*boards, *ending], ()))


@st.composite
def plots(draw):
    first = boards = draw(st.sampled_from([["A"], ["B", "C"], ["C"]]))
    now, images, changes = 0.0, [], []
    for _ in range(draw(st.integers(1, 30))):
        now += draw(st.sampled_from([0.0, 0.1, 0.5, 3.0]))
        if draw(st.integers(0, 4)):
            key = draw(st.sampled_from(boards))
            component = draw(st.sampled_from(sorted(BOARDS[key].components)))
            images.append(Image(now, draw(st.sampled_from([0.01, 0.05, 1.0])), key, component))
        else:
            boards = draw(st.sampled_from([["A"], ["B"], ["C"], ["A", "B"], ["C", "A"], ["A", "B", "C"]]))
            changes.append((now, boards))
    return Plot(images, changes, first, draw(st.integers(0, 4)))


def line_of(plot, strategy, capacity, executors):
    ids = {id: COSTS[id[-1]] for id in joined(BOARDS, SHARED).experts}
    said = {(number, id): plot.label(number, id[-1]) for number in range(len(plot.images)) for id in ids}
    rules = joined({key: BOARDS[key] for key in plot.first}, SHARED)
    return ChangingLine(rules, ids, pools_of(executors, capacity, 4), strategy=strategy, findings=said, evict_s=0.01)


def alone(plot):
    for key, rules in BOARDS.items():
        numbers = [number for number, image in enumerate(plot.images) if image.board == key]
        said = {(at, e): plot.label(number, e) for at, number in enumerate(numbers) for e in rules.experts}
        line = VirtualLine(rules, {e: COSTS[e] for e in rules.experts}, pools_of(1, 200, 4), findings=said)
        ids = {line.arrive(0.0, plot.images[number].component): number for number in numbers}
        line.run()
        yield from ((ids[id], result) for id, result in line.results.items())
