"""The simulated figures of docs/results.md. As a program it simulates all runs that docs/results.yaml names, or those
named after it, keeps their rows in docs/simulated.csv, and writes the figures into the data and the page.

A test simulates some of the rows again, so no figure outlives the decisions that it came from.
"""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from statistics import mean

import results_page
import yaml

ROWS = results_page.PAGE.with_name("simulated.csv")
WHICH = ("run", "device", "task", "order", "strategy", "boxes", "seed")
FIGURES = ("images_per_s", "p99_s", "switches", "makespan_s", "lower_bound_switches", "lower_bound_makespan_s")
NUMA, UMA = "numa-rtx3080ti", "uma-m2"


def runs():
    """Return the command of each simulated run, by its name."""
    sections = yaml.safe_load(results_page.DATA.read_text(encoding="utf-8"))["sections"]
    return {run["name"]: run["command"] for section in sections for run in section["runs"] if "name" in run}


def options(command):
    """Return the options of a `coe-bench sim` command; a flag has the value None."""
    named, words = {}, shlex.split(command)[2:]
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            named[word] = None if following.startswith("--") else following
    return named


def simulate(given):
    """Run `coe-bench sim` with these options; return its rows as the file has them, without the name of a run."""
    with tempfile.TemporaryDirectory() as folder:
        words = [word for pair in given.items() for word in pair if word is not None]
        tool = (sys.executable, "-c", "from coe.lab.cli.bench import main; main()", "sim")
        command = [*tool, *words, "--json", f"{folder}/rows.json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        with open(f"{folder}/rows.json", encoding="utf-8") as file:
            found = json.load(file)
    for row in found:
        row["seed"] = row.get("seed") or given.get("--seed", "0")
    return [{name: _text(row[name]) for name in (*WHICH, *FIGURES) if row.get(name) is not None} for row in found]


def _text(value):
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def again(row, command):
    """Return the options with which a row of the file is simulated alone."""
    given = {name: value for name, value in options(command).items() if name != "--seeds"}
    task, *tail = row["task"].split()
    given |= {
        "--task": task,
        "--device": row["device"],
        "--strategy": row["strategy"].split()[0],
        "--seed": row["seed"],
    }
    if row["boxes"]:
        return given | {"--boxes": row["boxes"]}
    order, *foresight = row["order"].split()
    return given | {"--order": order, "--tail": (*tail, "board")[0], "--foresight": (*foresight, "learned")[0]}


def read():
    """Return the rows of the file."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(rows):
    """Write the file; runs stand in the order of the page."""
    names = list(runs())
    with ROWS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, (*WHICH, *FIGURES), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: names.index(row["run"])))


# The figures of each run: what its rows on the page say


def measured(rows):
    """Return what the page says of each run, by the first words of each of its rows."""
    found = {}
    for name in runs():
        found |= MEASURES[name]([row for row in rows if row["run"] == name])
    return found


def _values(rows, figure, **which):
    return [float(row[figure]) for row in rows if all(row[name] == value for name, value in which.items())]


def _ratios(rows, figure, strategy, base, **which):
    pairs = zip(
        _values(rows, figure, strategy=strategy, **which), _values(rows, figure, strategy=base, **which), strict=True
    )
    return [one / other for one, other in pairs]


def _over_bound(rows, figure, **which):
    pairs = zip(_values(rows, figure, **which), _values(rows, f"lower_bound_{figure}", **which), strict=True)
    return [value / least for value, least in pairs]


def _speeds(rows):
    speeds = _values(rows, "images_per_s")
    return f"{min(speeds):.1f} to {max(speeds):.1f} images/s"


def _warm(rows):
    return {"speed in `mixed` with 0.5 % second looks and a full host memory at the start": _speeds(rows)}


def _cold(rows):
    return {"speed in `mixed` with 2 % second looks and an empty host memory at the start": _speeds(rows)}


def _boxes(rows):
    (one, *more) = (f"{float(row['images_per_s']):.3g}" for row in rows)
    several = (f"{speed} on {row['boxes']} boxes" for speed, row in zip(more, rows[1:], strict=True))
    return {"speed on task A1 in fp32": ", ".join([f"{one} images/s on 1 box", *several])}


def _ahead(rows):
    orders = {
        "CoE does not know the order of the parts": "boards none",
        "CoE learns the order from earlier boards": "boards",
        "a parts list gives the order": "boards parts",
    }
    return {
        f"p99 latency on board A if {words}": f"{_values(rows, 'p99_s', order=order)[0]:.2f} s"
        for words, order in orders.items()
    }


def _overall(rows):
    speeds = _ratios(rows, "images_per_s", "late-binding", "coserve")
    waits = _ratios(rows, "p99_s", "late-binding", "coserve")
    switches = _over_bound(rows, "switches", strategy="late-binding")

    def worst(ratios, most):
        return f"{mean(ratios):.3f} times on average, {most(ratios):.3f} at worst"

    return {
        "speed of `late-binding` compared with `coserve`, in 64 runs": worst(speeds, min),
        "p99 latency of `late-binding` compared with `coserve`, in the same runs": worst(waits, max),
        "switches of `late-binding` compared with the [fewest possible](bound.md), in the same runs": (
            worst(switches, max)
        ),
    }


def _paper(rows):
    narrow = [row for row in rows if "narrow" in row["task"]]
    full = [row for row in rows if row not in narrow]

    def span(some, order):
        ratios = _ratios(some, "images_per_s", "coserve", "samba", order=order)
        return f"{min(ratios):.1f} to {max(ratios):.1f} times"

    def spans(order):
        return f"{span(narrow, order)} with narrow boards, {span(full, order)} with full boards"

    words = f"speed of `coserve` compared with `samba` on `{NUMA}`, in random order (4.5 to 10.5 times in the paper)"
    return {words: spans("iid"), "the same, board after board": spans("boards")}


def _others(rows):
    names = ("hobbit", "duoserve", "expertflow", "emoe", "late-binding")
    (one, *more) = (mean(_ratios(rows, "images_per_s", name, "coserve")) for name in names)
    others = (f"{ratio:.2f} with `{name}`" for ratio, name in zip(more, names[1:], strict=True))
    figures = ", ".join([f"{one:.2f} times with `{names[0]}`", *others])
    return {"speed of other strategies compared with `coserve`, on the tasks A1 and B1": figures}


def _bound(rows):
    def over(device):
        switches, time = (mean(_over_bound(rows, figure, device=device)) for figure in ("switches", "makespan_s"))
        return f"{switches:.3f} times the switches, {time:.3f} times the total time"

    words = f"`late-binding` compared with the least possible, on `{NUMA}` with six seeds"
    return {words: over(NUMA), f"the same on `{UMA}`": over(UMA)}


MEASURES = {
    **{"warm": _warm, "cold": _cold, "boxes": _boxes, "ahead": _ahead},
    **{"overall": _overall, "paper": _paper, "others": _others, "bound": _bound},
}


def main(names):
    commands, rows = runs(), read() if ROWS.exists() else []
    for name in names or commands:
        rows = [row for row in rows if row["run"] != name]
        rows += [{"run": name, **row} for row in simulate(options(commands[name]))]
        write(rows)
        print(f"{name}: {sum(row['run'] == name for row in rows)} rows", flush=True)
    write_figures()


def write_figures():
    """Write the figures of the rows into the data and the page."""
    text = results_page.DATA.read_text(encoding="utf-8")
    for words, figure in measured(read()).items():
        text, found = re.subn(
            rf'(\["{re.escape(words)}", )"[^"]*"', lambda match, new=figure: f'{match[1]}"{new}"', text
        )
        assert found == 1, f"{found} rows of the page say: {words}"
    results_page.DATA.write_text(text, encoding="utf-8")
    results_page.PAGE.write_text(results_page.page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
