"""The rows of the house (DESIGN section 2): a module imports only from rows below its own."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "coe"

# From the roof down; a folder stands for everything in it. Modules of one row do not know each other.
ROWS = """
cli
profiler
benchmark
inspector
assembly
budgets
prepare
testing
sim runtime
report prescheduled
controller chrome_trace results
least
metrics residency run_file csv_table result_lines
summary cases executor broken
pool host_cache backlog demand deadlines policies
settings precision
rules images image_source kinds variants snapshot data_set
rules_form
store torch_file router process_sheet decoding fingerprint fit circles
leftovers weights_file
manifest
plan profile blob_file safetensors_header values
labels graph config events files blob_format image_size tiff folder picture_file regular dotted
costs
core errors visible surroundings
"""
HOUSE = [row.split() for row in ROWS.split("\n") if row]
TORCH = {"runtime", "torch_file", "prepare", "kinds", "store", "weights_file", "profiler.measure", "profiler.backends"}
# These make up weights for trials and import torch where they do, so that `--help` starts without it.
LAZY_TORCH = {"benchmark", "cli.experts"}
HEAVY = {"torch", "torchvision", "ultralytics", "onnxruntime"}
CLOCKS = {"runtime", "profiler", "cli", "inspector", "benchmark"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def top(name: str) -> str:
    return name.partition(".")[0]


def row_of(module: str) -> int | None:
    """Return how far down a module of `coe` stands; that of its top folder if it lies in one."""
    found = [number for number, row in enumerate(HOUSE) if top(module) in row]
    return found[0] if found else None


def imports(path: Path, *, lazy: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import; with `lazy` those inside functions and for type checkers too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: write imports in full"
            # `from coe import rules` names a module, `from coe.rules import load` names one already.
            names = [f"coe.{alias.name}" for alias in node.names] if node.module == "coe" else [node.module or ""]
            yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            yield from ((node.lineno, str(one.value)) for one in node.args[:1] if isinstance(one, ast.Constant))


ALL = pytest.mark.parametrize("module", MODULES)


@ALL
def test_each_module_has_a_row(module: str) -> None:
    assert row_of(module) is not None, (
        f"coe.{module} has no row: write '{top(module)}' into ROWS of tests/unit/test_layers.py, above all that it "
        "imports and below all that import it, and say in docs/architecture.md what it is for"
    )


@ALL
def test_a_module_imports_only_from_rows_below_its_own(module: str) -> None:
    row = row_of(module)
    for line, name in imports(MODULES[module]):
        other = top(name.removeprefix("coe."))
        if name.startswith("coe.") and other != top(module) and row is not None:
            below = row_of(other)
            assert below is not None, f"coe.{module}:{line} imports coe.{other}, which has no row in ROWS"
            assert below > row, (
                f"coe.{module}:{line} imports coe.{other}, which does not stand below it: {' '.join(HOUSE[row])} may "
                "import only rows further down in ROWS; move what is shared down, or pass it in as an argument"
            )


@ALL
def test_the_framework_knows_neither_experts_nor_apps(module: str) -> None:
    for line, name in imports(MODULES[module]):
        assert top(name) not in ("experts", "apps", "tests"), (
            f"coe.{module}:{line} imports {name}: kinds are found by coe.kinds.resolve, never imported"
        )


def outside(module: str, places: set[str]) -> bool:
    return not any(module == place or module.startswith(f"{place}.") for place in places)


@ALL
def test_torch_stays_where_weights_are(module: str) -> None:
    if outside(module, TORCH):
        for line, name in imports(MODULES[module], lazy=outside(module, LAZY_TORCH)):
            assert top(name) not in HEAVY, (
                f"coe.{module}:{line} imports {name}: only {', '.join(sorted(TORCH))} and experts/ may; decisions, "
                "rules and reports must start without it"
            )


@ALL
def test_clocks_and_threads_stay_at_the_rim(module: str) -> None:
    if outside(module, CLOCKS):
        for line, name in imports(MODULES[module]):
            assert top(name) not in ("time", "threading", "concurrent", "asyncio", "multiprocessing"), (
                f"coe.{module}:{line} imports {name}: only {', '.join(sorted(CLOCKS))} may; elsewhere time is an "
                "argument (`now`) and work is a command"
            )


@ALL
def test_nothing_calls_out(module: str) -> None:
    for line, name in imports(MODULES[module]):
        assert top(name) not in (
            "socket",
            "ssl",
            "urllib",
            "http",
            "requests",
            "httpx",
            "ftplib",
            "smtplib",
        ), f"coe.{module}:{line} imports {name}: nothing calls out, at import or at run time"


def test_the_walk_sees_every_way_to_import(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        "import a.b as c, d\nfrom coe import rules, store as s\nfrom coe.pool import State\n"
        "def f():\n    import time\n    if TYPE_CHECKING:\n        from coe.x import y\n"
        "    importlib.import_module('torch')\n"
    )
    assert sorted(imports(path)) == [
        (1, "a.b"),
        (1, "d"),
        (2, "coe.rules"),
        (2, "coe.store"),
        (3, "coe.pool"),
        (5, "time"),
        (7, "coe.x"),
        (8, "torch"),
    ]


def test_help_does_not_wait_for_torch() -> None:
    commands = "coe.cli.bench, coe.cli.inspect, coe.cli.profile"
    imports_all = f"import sys, {commands}; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", imports_all], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
