"""docs/results.md, made from docs/results.yaml. As a program it writes the page."""

from pathlib import Path

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
DATA = PAGE.with_suffix(".yaml")
_HEAD = ("figure", "measured", "goal", "on")


def page():
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return "\n".join([data["intro"], *(_section(**section) for section in data["sections"])])


def _section(text, runs):
    rows = [(*row, run["machine"]) for run in runs for row in run["rows"]]
    machines = {row[-1] for row in rows}
    said = f"{text}\nMachine: {machines.pop()}.\n" if len(machines) == 1 else text
    # A column that says nothing, or the same of all, is left out.
    kept = [index for index in range(len(_HEAD)) if index < 2 or len({row[index] for row in rows}) > 1]
    head, *lines = [f"| {' | '.join(row[index] for index in kept)} |\n" for row in (_HEAD, *rows)]
    return f"{said}\n{head}|{'---|' * len(kept)}\n{''.join(lines)}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
