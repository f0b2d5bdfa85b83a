"""A trial beside the line: it rests while the line works, goes on when it does not, and is never held up for ever."""

from dataclasses import dataclass, field

import pytest

from coe.serve.trials import REST_S, TrialPace


@dataclass
class Machine:
    """A clock, the processor time of the trial, and until when the line works."""

    line_works_until_s: float
    now_s: float = 0.0
    cpu_s: float = 0.0
    waits: list[float] = field(default_factory=list)

    def pace(self, share):
        works = lambda: self.now_s < self.line_works_until_s  # noqa: E731
        return TrialPace(share, works, self._wait, lambda: self.now_s, lambda: self.cpu_s)

    def _wait(self, seconds):
        self.waits.append(seconds)
        self.now_s += seconds

    def inspect(self, cpu_s, wall_s):
        self.cpu_s += cpu_s
        self.now_s += wall_s


@pytest.mark.parametrize(
    ("cpu_s", "wall_s", "share", "line_until_s", "rests_s"),
    [
        (0.5, 0.5, 0.1, 100, 4.5),  # 0.5 s of each 5 s
        (0.5, 3.0, 0.1, 100, 2.0),  # other programs have held the trial up already
        (0.5, 9.0, 0.1, 100, 0.0),
        (0.5, 0.5, 1.0, 100, 0.0),  # a machine with many cores
        (0.5, 0.5, 0.1, 0, 0.0),  # the line rests
        (0.5, 0.5, 0.1, 2, 2 * REST_S),  # the line ends its work meanwhile
    ],
)
def test_a_trial_rests_in_turn(cpu_s, wall_s, share, line_until_s, rests_s):
    machine = Machine(line_until_s)
    pace = machine.pace(share)
    for _ in range(1 if line_until_s == 2 else 3):
        machine.waits.clear()
        machine.inspect(cpu_s, wall_s)
        pace.rest()
        assert sum(machine.waits) == pytest.approx(rests_s)
        assert max(machine.waits, default=0) <= REST_S, "it looks at the line, and says how far it is"


def test_the_time_to_open_counts_not():
    machine = Machine(100)
    pace = machine.pace(0.1)
    machine.inspect(5, 5)
    pace.begin()
    machine.inspect(0.1, 0.1)
    pace.rest()
    assert sum(machine.waits) == pytest.approx(0.9)
