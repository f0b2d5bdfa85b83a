"""docs/results.md, made from docs/results.yaml. As a program it writes the page."""

from pathlib import Path

import yaml

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
DATA = PAGE.with_suffix(".yaml")
_HEAD = "| figure | measured | goal | on |\n|---|---|---|---|\n"


def page():
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return "\n".join([data["intro"], *(_section(**section) for section in data["sections"])])


def _section(text, runs):
    rows = [f"| {' | '.join(row)} | {run['machine']} |\n" for run in runs for row in run["rows"]]
    return f"{text}\n{_HEAD}{''.join(rows)}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
