"""One model for all component types against the collaboration of experts: `python -m apps.demo.one_model`.

Both learn from the same pictures, for the same processor time. The collaboration is the demo board's: a common body, a
classifier for each shape, two shared detectors. The one model is a ResNet18 that knows all defects of all types. Then
one type is left out and added afterwards: the collaboration trains one expert, and the one model is either trained
again on all pictures, or goes on with those of the new type alone. Results are in docs/results/collaboration.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import torch
import yaml
from rich.table import Table

from apps.demo.count import Count
from apps.demo.evaluate import inspect, tally, total
from apps.demo.lessons import BODY
from apps.demo.production import BoardPlace, lot
from apps.demo.render import COMPONENTS
from apps.demo.school import Learned, School
from coe import Inspector
from coe.board import rules
from coe.cli.console import Console
from coe.core import Expert
from coe.store.store import Store

NEW = "Q-SOT23-NPN"


@dataclass(frozen=True, slots=True)
class Contestant:
    """Rules and a store whose experts are trained, and the seconds of processor time of their training."""

    name: str
    rules: Path
    store: Path
    seconds: float


def everything(types: Iterable[str], input_size: int) -> Expert:
    """Return the one model: a label for each defect that any of these types may have."""
    defects = dict.fromkeys(defect for name in types for defect in COMPONENTS[name].defects)
    return Expert("everything", "resnet18", ("ok", *defects), input_size, f"one{input_size}/everything")


def put(store: Store, expert: Expert, learned: Learned) -> None:
    """Put a trained expert into a store."""
    store.put(
        expert.weights,
        kind=expert.kind,
        labels=expert.labels,
        input_size=expert.input_size,
        state=learned.state,
    )


def as_collaboration(school: School, name: str, learned: dict[str, Learned], types: Iterable[str]) -> Contestant:
    """Lay experts into a store of their own, and the demo board's rules of these types beside it."""
    folder = school.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    for id, one in learned.items():
        if id != BODY.id:
            put(Store(folder / "store"), school.expert(id), one)
    sheet = yaml.safe_load(rules.find("demo").read_bytes())
    sheet["experts"] = {id: entry for id, entry in sheet["experts"].items() if id in learned}
    sheet["components"] = {one: sheet["components"][one] for one in types}
    path = folder / "demo.yaml"
    path.write_text(yaml.safe_dump(sheet, sort_keys=False), encoding="utf-8")
    return Contestant(name, path, folder / "store", sum(one.seconds for one in learned.values()))


def as_one_model(school: School, name: str, expert: Expert, learned: Learned) -> Contestant:
    """Lay one model into a store, and write rules that send every type to it; each defect is NG."""
    folder = school.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    put(Store(folder / "store"), expert, learned)
    then = {label: "OK" if label == "ok" else "NG" for label in expert.labels}
    sheet = {
        "board": f"one{expert.input_size}",
        "experts": {expert.id: {"kind": expert.kind, "labels": [*expert.labels], "input": expert.input_size}},
        "components": {one: {"inspect": expert.id, "min_score": 0.5, "then": then} for one in COMPONENTS},
    }
    path = folder / "one.yaml"
    path.write_text(json.dumps(sheet), encoding="utf-8")  # JSON is YAML without aliases
    return Contestant(name, path, folder / "store", learned.seconds)


def judged(contestant: Contestant, lots: Iterable[list[BoardPlace]], types: Iterable[str]) -> list[dict[str, Count]]:
    """Inspect the parts of some types on each lot; return the counts by type."""
    asked = set(types)
    with Inspector(contestant.rules, store=contestant.store, memory="1.5GiB", profile=None) as line:
        return [tally(inspect(line, [place for place in places if place.component in asked]))[0] for places in lots]


def shown(title: str, rows: Sequence[tuple[str, float, Count]]) -> Table:
    """Return a table of contestants: seconds of training, and verdicts."""
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("training", "good", "bad", "escapes", "false calls", "review: good", "review: bad", "right"):
        table.add_column(name, justify="right")
    for name, seconds, count in rows:
        numbers = (count.good, count.bad, count.escapes, count.false_calls, count.good_reviewed, count.bad_reviewed)
        table.add_row(name, f"{seconds:.0f} s", *map(str, numbers), f"{count.accuracy:.1%}")
    return table


def against_each_other(school: School, lots: list[list[BoardPlace]], inputs: Sequence[int]) -> list[Table]:
    """Train and judge both on all types."""
    types = list(COMPONENTS)
    many = as_collaboration(school, "collaboration", school.collaboration(types), types)
    data = school.pictures(types)
    contestants = [many]
    for size in inputs:
        expert = everything(types, size)
        contestants.append(
            as_one_model(school, f"one model, {size} px", expert, school.one_model(expert, data, many.seconds))
        )
    found = [(one, judged(one, lots, types)) for one in contestants]
    titles = ("as on a line", "every third part defective")
    return [
        shown(title, [(one.name, one.seconds, total(counts[number])) for one, counts in found])
        for number, title in enumerate(titles)
    ]


def gone_on(school: School, expert: Expert, known: Learned, new: Expert, seconds: float) -> Learned:
    """Train one model on, with pictures that have the labels of `new` alone; what it says of other labels stays."""
    rows = [expert.labels.index(label) for label in new.labels]
    start = {name: value[rows].contiguous() if name.startswith("fc.") else value for name, value in known.state.items()}
    learned = school.one_model(new, school.pictures([NEW]), seconds, start)
    state = dict(learned.state)
    for name in ("fc.weight", "fc.bias"):
        state[name] = known.state[name].clone()
        state[name][rows] = learned.state[name]
    return Learned(state, learned.seconds)


def a_new_type(school: School, lots: list[list[BoardPlace]], size: int) -> list[Table]:
    """Train both without a type, add it, and judge the new type and the others."""
    others = [name for name in COMPONENTS if name != NEW]
    learned = school.collaboration(others)
    before = as_collaboration(school, "collaboration without it", learned, others)
    [name] = [id for id in school.experts([NEW]) if id not in learned]
    added = school.learn(name, [NEW], learned)
    after = as_collaboration(school, "collaboration and one expert", {**learned, name: added}, COMPONENTS)
    again_too = {
        id: school.learn(id, list(COMPONENTS), learned) for id in school.experts([NEW]) if id not in (BODY.id, name)
    }
    shared = as_collaboration(
        school, "collaboration, expert and detector", {**learned, name: added, **again_too}, COMPONENTS
    )
    expert = everything(COMPONENTS, size)
    data = school.pictures(others)
    without = school.one_model(expert, data, before.seconds)
    new_only = gone_on(school, expert, without, everything([NEW], size), added.seconds)
    again = school.one_model(expert, school.pictures(list(COMPONENTS)), before.seconds + added.seconds)
    contestants = [
        (before, 0.0, False),
        (after, added.seconds, True),
        (shared, sum(one.seconds for one in (added, *again_too.values())), True),
        (as_one_model(school, "one model without it", expert, without), 0.0, False),
        (as_one_model(school, "one model, new pictures alone", expert, new_only), new_only.seconds, True),
        (as_one_model(school, "one model, all again", expert, again), again.seconds, True),
    ]
    tables = []
    for title, types in ((f"the new type, {NEW}", [NEW]), ("the other types", others)):
        rows = []
        for one, seconds, knows in contestants:
            if knows or NEW not in types:
                counts = judged(one, lots[1:], types)[0]
                rows.append((one.name, seconds, total(counts)))
        tables.append(shown(f"{title}, every third part defective; training that the new type takes", rows))
    return tables


def main(arguments: list[str] | None = None) -> None:
    """Train, inspect new lots, print tables."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.one_model", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/one-model"), help="where it works (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of pictures and training (%(default)s)")
    parser.add_argument("--boards", type=int, default=12, help="boards of each lot to inspect (%(default)s)")
    parser.add_argument("--lots", type=int, default=9801, help="first seed of the lots (%(default)s)")
    parser.add_argument("--input", type=int, action="append", help="input of the one model; default: 64 and 128")
    parser.add_argument("--only", choices=("all-types", "new-type"), help="one of the two trials alone")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    lots = [lot(options.boards, options.lots), lot(options.boards, options.lots + 1, defective=1 / 3)]
    school, inputs = School(options.folder, options.seed), options.input or [64, 128]
    console = Console(width=140)
    if options.only != "new-type":
        for table in against_each_other(school, lots, inputs):
            console.print(table)
    if options.only != "all-types":
        for table in a_new_type(school, lots, inputs[-1]):
            console.print(table)


if __name__ == "__main__":
    main()
