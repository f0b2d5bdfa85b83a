"""The rows of the house: a package imports only packages of the rows below its own row.

The rows stand in docs/architecture.md, and nowhere else: this test reads them there.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "coe"
ARCHITECTURE = ROOT / "docs" / "architecture.md"

HEAVY = {"torch", "torchvision", "ultralytics", "onnxruntime"}
TORCH = {
    "runtime",
    "bring",
    "learn.backbones",
    "learn.choosing",
    "learn.learning",
    "store.kinds",
    "store.outputs",
    "store.random_weights",
    "store.runnable_kinds",
    "store.skeletons",
    "store.store",
    "store.torch_file",
    "store.weights_file",
    "profiler.measure",
    "variants",
}
# These make weights for trials, and import torch inside the functions that do, so that `--help` starts without it.
LAZY_TORCH = {"lab", "profiler.line_run", "cli.experts_command", "store.tensor_files"}
# `helpers.system` waits where Windows does not let a file be replaced yet.
CLUSTER_THREADS = {f"cluster.{name}" for name in ("box", "head_thread", "cluster_engine", "over_ray", "ray_session")}
CLOCKS = {
    "runs",
    "helpers.ending",
    "runtime",
    "profiler",
    "cli",
    "inspector",
    "lab",
    "serve",
    "helpers.system",
    "helpers.timely",
    *CLUSTER_THREADS,
}
CLOCK_MODULES = {"time", "threading", "concurrent", "asyncio", "multiprocessing"}
NETWORK = {"socket", "ssl", "urllib", "http", "requests", "httpx", "ftplib", "smtplib"}


def rows() -> list[list[str]]:
    """Return the packages of each row, from the roof down, as the table of docs/architecture.md has them."""
    text = ARCHITECTURE.read_text(encoding="utf-8").partition("## Layers")[2].partition("\n## ")[0]
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [re.findall(r"`([a-z_]+)/?`", cell) for cell in table]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def top(name: str) -> str:
    return name.partition(".")[0]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a statement; expressions are passed over, which are most of a tree."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from _statements(child)


@cache
def _nodes(path: Path) -> list[ast.AST]:
    calls = re.search("__import__|import_module", path.read_text(encoding="utf-8"))
    return [
        node
        for node in (ast.walk if calls else _statements)(_tree(path))
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (isinstance(node, ast.Call) and _imports(node.func))
    ]


def _imports(function: ast.expr) -> bool:
    """Tell whether a call of this name is an import: `__import__` or `importlib.import_module`."""
    match function:
        case ast.Name("__import__") | ast.Attribute(ast.Name("importlib"), "import_module"):
            return True
    return False


def imports(path: Path, *, lazy: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import; with `lazy` those inside functions and for type checkers too."""
    for node in _nodes(path) if lazy else _tree(path).body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: write imports in full"
            # `from coe.board import rules` names a module, `from coe.board.rules import load` names it already.
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix("coe.") in MODULES or node.module == "experts"
                yield node.lineno, full if is_module else str(node.module)
        elif isinstance(node, ast.Call) and _imports(node.func):
            yield from ((node.lineno, str(one.value)) for one in node.args[:1] if isinstance(one, ast.Constant))


def outside(module: str, places: set[str]) -> bool:
    return not any(module == place or module.startswith(f"{place}.") for place in places)


def test_the_table_of_the_architecture_names_each_package_once() -> None:
    named = [package for row in rows() for package in row]
    assert len(named) == len(set(named)), "docs/architecture.md names a package in two rows"
    assert set(named) == {top(module) for module in MODULES if module}, (
        "the table under '## Layers' of docs/architecture.md and the folder coe/ differ"
    )


def test_a_package_imports_only_from_rows_below_its_own() -> None:
    row_of = {package: number for number, row in enumerate(rows()) for package in row}
    row_of[""] = row_of["inspector"]  # `import coe`, the front door, leads there
    wrong = [
        f"coe.{module}:{line} imports {name}"
        for module, path in MODULES.items()
        if module
        for line, name in imports(path)
        if f"{name}.".startswith("coe.") and (other := top(name.removeprefix("coe").removeprefix("."))) != top(module)
        if row_of[other] <= row_of[top(module)]
    ]
    assert not wrong, "; ".join(wrong) + ": move what is shared down, or pass it in as an argument"


def test_the_engine_imports_none_of_the_annexes() -> None:
    annexes = {"serve", "cluster", "lab"}
    wrong = [
        f"coe.{module}:{line} imports {name}"
        for module, path in MODULES.items()
        if top(module) not in annexes
        for line, name in imports(path)
        if name.startswith("coe.") and top(name.removeprefix("coe.")) in annexes
    ]
    assert not wrong, "; ".join(wrong) + ": an annex is found by an entry point, or passed in"


LINE = {
    *("board", "comparing", "config", "core", "errors", "helpers", "inspector", "pictures", "results", "runtime"),
    *("scheduler", "store"),
}


@pytest.mark.parametrize(
    ("first", "needed"), [(r"$|inspector", LINE), (r"cli\.inspect", LINE | {"cli", "placement", "runs"})]
)
def test_a_line_needs_few_packages(first: str, needed: set[str]) -> None:
    """The API, and `coe-inspect`, need no package that prepares experts and boxes, simulates, or reads a CAD's files.

    They read a store, and never write it.
    """
    reached, new = set[str](), {module for module in MODULES if re.match(first, module)}
    while new:
        reached |= new
        names = {name.removeprefix("coe.") for module in new for _, name in imports(MODULES[module])}
        new = (names & MODULES.keys()) - reached
    assert {top(module) for module in reached if module} == needed
    assert {"runtime.engine", "scheduler.controller", "store.store_reader"} <= reached
    assert not {"store.store", "store.references", "store.tensor_files", "store.blob_writing"} & reached
    assert "scheduler.policies.coserve" not in reached, "it is found by its entry point"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Inside functions neither: two files that need each other are one, or a third is missing."""
    files = {f"coe.{module}".rstrip("."): path for module, path in MODULES.items()}
    files |= {f"experts.{path.stem}": path for path in (ROOT / "experts").glob("*.py")}
    graph = {name: {other for _, other in imports(path)} & files.keys() for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def forbidden(names: set[str], places: set[str], lazy_places: set[str] = frozenset()) -> list[str]:
    """Return the imports of such names outside such places; in `lazy_places` functions may import them."""
    return [
        f"coe.{module}:{line} imports {name}"
        for module, path in MODULES.items()
        if outside(module, places)
        for line, name in imports(path, lazy=outside(module, lazy_places))
        if top(name) in names
    ]


def test_the_framework_knows_neither_experts_nor_apps() -> None:
    assert not forbidden({"experts", "apps", "tests"}, set()), "kinds are found by coe.store.kinds.resolve"


def test_torch_stays_where_weights_are() -> None:
    assert not forbidden(HEAVY, TORCH, LAZY_TORCH), "decisions, rules and reports must start without torch"


def test_clocks_and_threads_stay_at_the_rim() -> None:
    assert not forbidden(CLOCK_MODULES, CLOCKS), "elsewhere time is an argument (`now`) and work is a command"


def test_no_assertion_changes_what_it_looks_at() -> None:
    """With `python -O` there is none."""
    changing = {"add", "append", "discard", "extend", "insert", "pop", "popleft", "remove", "setdefault", "update"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert):
                called = {part.attr for part in ast.walk(node.test) if isinstance(part, ast.Attribute)}
                assert not called & changing, f"{path}:{node.lineno}"


def test_nothing_calls_out() -> None:
    asking = {"lab.serve_bench", "cluster.ray_session"}
    assert not forbidden(NETWORK, {"serve", *asking}), "no connection is opened, at import or at run time"
    # The gate has HTTP's words and answers; datagrams on this machine tell systemd and the other processes; the
    # bridge tells those whom the config names. A benchmark asks the service that it has started on this machine, and
    # the way to boxes whether anybody is there. A start looks whether its own port is free, and its certificate fits.
    assert not forbidden({"http"}, {"serve.gate", "serve.bridge"})
    assert not forbidden({"socket"}, {"serve.supervisor", "serve.exposure", *asking})
    assert not forbidden({"ssl"}, {"serve.bridge", "serve.exposure", "serve.tls_files"})
    assert not forbidden({"httpx"}, {"serve.bridge", *asking})
    assert not forbidden(NETWORK - {"http", "httpx", "socket", "ssl"}, set())


def test_the_libraries_of_the_service_stay_in_its_rooms() -> None:
    assert not forbidden({"sqlalchemy", "alembic"}, {"serve", "lab.past_boards"})
    assert not forbidden({"starlette", "uvicorn", "prometheus_client"}, {"serve.gate"})
    assert not forbidden({"paho", "proton", "asyncua"}, {"serve.bridge"})


def test_one_package_alone_knows_ray() -> None:
    assert not forbidden({"ray"}, set(), {"cluster.over_ray", "cluster.ray_session", "cluster.actor"})


def test_the_walk_sees_every_way_to_import(tmp_path: Path) -> None:
    path, other = tmp_path / "m.py", tmp_path / "n.py"
    statements = (
        "import a.b as c, d\nfrom coe.board import rules, router as i\nfrom coe.scheduler.pool import State\n"
        "def f():\n    import time\n    if TYPE_CHECKING:\n        from coe.x import y\n"
        "    try:\n        import e\n    except ImportError:\n        import g\n"
        "    match 1:\n        case 1:\n            with h:\n                import j\n"
    )
    path.write_text(statements)
    seen = [
        (1, "a.b"),
        (1, "d"),
        (2, "coe.board.router"),
        (2, "coe.board.rules"),
        (3, "coe.scheduler.pool"),
        (5, "time"),
        (7, "coe.x"),
        (9, "e"),
        (11, "g"),
        (15, "j"),
    ]
    assert sorted(imports(path)) == seen
    other.write_text(statements + "    print(importlib.import_module('torch'))\n")
    assert sorted(imports(other)) == [*seen, (16, "torch")]


@pytest.mark.parametrize(
    "modules", ["coe", "coe.lab.cli.bench, coe.cli.inspect, coe.cli.profile_command, coe.serve.command"]
)
def test_neither_the_front_door_nor_help_waits_for_large_libraries(modules: str) -> None:
    large = {"torch", "cv2", "matplotlib", "networkx", "sqlalchemy", "starlette", "alembic"}
    imports_all = f"import sys, {modules}; print(*{large} & sys.modules.keys())"
    said = subprocess.run([sys.executable, "-c", imports_all], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []


@pytest.mark.parametrize(("given", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(given: str | None, policy: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    said = subprocess.run(
        [sys.executable, "-c", "import coe, os; print(os.environ['OMP_WAIT_POLICY'])"],
        env={**environment, **({"OMP_WAIT_POLICY": given} if given else {})},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == policy
