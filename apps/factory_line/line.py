"""A factory line against the public API: cameras hand in frames, verdicts come out board by board, in real time.

    python -m apps.factory_line.line --board demo --images build/demo/images --rate 20

Each picture under --images stands for a frame that a camera delivers at its moment. The program shows what an
integrator has to write: submit and go on, answer a conveyor once a board is complete, and end in order.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter, defaultdict
from pathlib import Path

from coe import images, rules
from coe.core import Result, Verdict, worst
from coe.inspector import Inspector


class Conveyor:
    """Collects the results of each board and says what is to become of it once the last one is in."""

    def __init__(self, expected: Counter[str]) -> None:
        self._expected = expected
        self._results: dict[str, list[Result]] = defaultdict(list)

    def take(self, result: Result) -> str | None:
        """Take in one result; return the sentence for a board that is complete now."""
        serial = result.request.serial
        found = self._results[serial]
        found.append(result)
        if len(found) < self._expected[serial]:
            return None
        del self._results[serial]
        # A picture that could not be judged is for a person to look at, never a pass.
        verdict = worst([one.verdict or Verdict.REVIEW for one in found])
        worst_places = [one.request.refdes for one in found if (one.verdict or Verdict.REVIEW) is not Verdict.OK]
        slowest_s = max(one.latency_s for one in found)
        places = f" ({', '.join(worst_places[:6])}{' ...' if len(worst_places) > 6 else ''})" if worst_places else ""
        return f"board {serial or '-'}: {verdict}{places}, {len(found)} images, slowest {slowest_s:.2f} s"


async def run(board: str, source: Path, memory: str, rate: float) -> int:
    """Feed frames at `rate` a second and print a line for each board; return how many boards did not pass."""
    items = [item for item in images.find(source, rules.load(board).components)[0] if item.error is None]
    conveyor = Conveyor(Counter(item.serial for item in items))
    bad = 0
    with Inspector(board, memory=memory, say=print) as line:

        async def frame(item: images.Item) -> None:
            nonlocal bad
            result = await line.inspect(item.path, item.component, serial=item.serial, refdes=item.refdes)
            if sentence := conveyor.take(result):
                bad += ": OK," not in sentence
                print(sentence, flush=True)

        began = time.monotonic()
        async with asyncio.TaskGroup() as frames:
            for index, item in enumerate(items):
                await asyncio.sleep(max(0.0, began + index / rate - time.monotonic()))
                frames.create_task(frame(item))
        seen = line.metrics()
    print(f"{seen.images} images, {seen.images_per_s:.1f} images/s, {seen.switches} switches")
    return bad


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="demo", help="a name or a YAML file (default: demo)")
    parser.add_argument("--images", type=Path, default=Path("build/demo/images"), help="folder of pictures")
    parser.add_argument("--memory", default="150MB", help="budget for experts and activations (default: 150MB)")
    parser.add_argument("--rate", type=float, default=20.0, help="frames a second (default: 20)")
    options = parser.parse_args()
    raise SystemExit(1 if asyncio.run(run(options.board, options.images, options.memory, options.rate)) else 0)


if __name__ == "__main__":
    main()
