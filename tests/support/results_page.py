"""docs/results.md, made from docs/results.yaml. As a program it writes the page."""

from pathlib import Path

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
_HEAD = "| | measured | goal | run |\n|---|---|---|---|\n"


def page():
    """Return the page as it must be."""
    data = yaml.safe_load(PAGE.with_suffix(".yaml").read_text(encoding="utf-8"))
    return "\n".join([data["intro"], *(_section(**section) for section in data["sections"])])


def _section(text, runs):
    table, made = _HEAD, ""
    for number, run in enumerate(runs, 1):
        table += "".join(f"| {' | '.join(row)} | {number} |\n" for row in run["rows"])
        commit = f" ({run['commit']})" if run["commit"] else ""
        made += f"{run['command']}  # {number}: {run['machine']}, {run['day']}{commit}\n".lstrip()
    return f"{text}\n{table}\n```\n{made}```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
