"""Kinds by dotted path: what is not allowed is never imported, and a kind that fails gives a sentence."""

import sys

import pytest
from picture_folders import make

from coe import Inspector, Picture
from coe.board import rules
from coe.cli import experts_command, inspect
from coe.errors import ConfigError
from coe.helpers.plugins import packages
from coe.runtime.cpu import CpuDevice
from coe.store import kinds
from coe.store.store import Store

PACKAGE, MARK = "foreign_kinds", "refused_kinds"
GOOD = """
import torch
from coe.store.kinds import Kind, ModuleKind
from experts.findings import classified
from experts.geometry import letterbox

class Good(ModuleKind):
    name = "foreign_kinds.good:Good"
    task = "classify"

    def preprocess(self, image, expert):
        return letterbox(image, expert.input_size, (0, 0, 0))

    def skeleton(self, expert):
        return torch.nn.Linear(1, len(expert.labels)).eval()

    def forward(self, module, images):
        return module(images.float().mean(dim=(1, 2, 3))[:, None] / 255)

    def postprocess(self, outputs, prepared, expert):
        return classified(outputs.softmax(dim=1), expert)

class Abstract(ModuleKind):
    name, task = "abstract", "classify"

class Bare(Kind):
    name, task = "bare", "classify"

    def preprocess(self, image, expert): pass
    def postprocess(self, outputs, prepared, expert): pass

class Raising(Good):
    def __init__(self): raise ValueError("no camera\\nhere")

class Exiting(Good):
    def __init__(self): raise SystemExit(0)

class Demanding(Good):
    def __init__(self, folder): pass

class Inherited(BaseException): pass

class Odd(Good):
    def __init__(self): raise Inherited("odd")

class Nameless(Good): name = None
class Taskless(Good): task = "guess"
class Batchless(Good): max_batch = 0
class Halved(Good): max_batch = 2.5

class Asking(Good):
    @property
    def max_batch(self): raise SystemExit("asked")

class NoNetwork(Good):
    def skeleton(self, expert): raise OSError("no network")

class Leaving(Good):
    def skeleton(self, expert): raise SystemExit(7)

class Failing(Good):
    def forward(self, module, images): raise ValueError("bad numbers")

class Quitting(Good):
    def forward(self, module, images): raise SystemExit(9)

good, number = Good(), 3

def function(): raise AssertionError("called")
"""
MODULES = {
    "__init__": "",
    "good": GOOD,
    "exits": "raise SystemExit(5)",
    "exits_well": "raise SystemExit",
    "raises": "raise RuntimeError('x' * 10_000)",
    "lines": "raise RuntimeError('a\\nb')",
    "mistyped": "class :",
    "odd": "class Odd(BaseException):\n    def __str__(self): raise Odd()\nraise Odd()",
    "deep": "def f(): f()\nf()",
    "empties": "def __getattr__(name): raise ZeroDivisionError(name)",
}


@pytest.fixture(autouse=True)
def foreign(tmp_path, monkeypatch):
    """Packages of a user's on the path; importing that which nobody allows leaves a mark, whose path this is."""
    folder = tmp_path / "packages"
    (folder / PACKAGE).mkdir(parents=True)
    for name, text in MODULES.items():
        (folder / PACKAGE / f"{name}.py").write_text(text, encoding="utf-8")
    mark = tmp_path / "imported"
    (folder / f"{MARK}.py").write_text(f"open({str(mark)!r}, 'w')\nfrom foreign_kinds.good import Good\n")
    monkeypatch.syspath_prepend(folder)
    yield mark
    for name in [name for name in sys.modules if name.partition(".")[0] in (PACKAGE, MARK)]:
        del sys.modules[name]


SPELLINGS = [
    *(":x", "line7:", ":", ".x:y", "..x:y", "../evil:K", "/evil:K", "a..b:c", "a.:c", "a:b:c", "os:system('true')"),
    *("os:path.join", "my-package:Kind", "line7 :Kind", "line7:Kind\n", "\tline7:Kind", "line7\0:Kind"),
    *("l\u0456ne7:Kind", "\uff4f\uff53:system", "7line:Kind", "class:Kind", "line7:None"),
    *("a" * 10_000 + ":K", "a." * 5_000 + "a:K", "a:" + "K" * 10_000, "\x1b[31mline7:K", "http://host/a:K"),
]


@pytest.mark.parametrize("name", SPELLINGS, ids=lambda name: ascii(name)[:40])
def test_a_path_that_is_none_is_refused_by_how_it_is_written(name):
    known = set(sys.modules)
    with pytest.raises(ConfigError, match=r"package\.module:NAME") as refused:
        kinds.resolve(name, ["line7", "os", "a", "evil"])
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()
    assert set(sys.modules) == known


@pytest.mark.parametrize("name", ["this:s", "os:_exit", "builtins:exec", "coe.testing:rules_from", f"{MARK}:Good"])
@pytest.mark.parametrize("allowed", [(), ("refused",), ("refused_kinds.inner",), (PACKAGE,)], ids=str)
def test_what_is_not_allowed_is_not_imported(name, allowed, foreign, capsys):
    package = name.partition(":")[0].partition(".")[0]
    with pytest.raises(ConfigError, match=f"give --allow-kind {package} "):
        kinds.resolve(name, allowed)
    assert not foreign.exists()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("allowed", ["line7", 3, [3], [""], ["a b"], [".a"], ["a:b"], ["*"], ["class"]], ids=repr)
def test_what_is_no_package_allows_nothing(allowed):
    with pytest.raises(ConfigError, match="package"):
        packages(allowed)


FAULTS = {
    "good:Abstract": "lacks forward, postprocess, preprocess, skeleton",
    "good:Kind": "is abstract",
    "good:Bare": "is a Bare",
    "good:Raising": "ValueError: no camera here",
    "good:Exiting": "it exits the program: 0",
    "good:Demanding": "TypeError",
    "good:Odd": "Inherited: odd",
    "good:Nameless": "`name`",
    "good:Taskless": "`task`",
    "good:Batchless": "`max_batch` of 0",
    "good:Halved": "`max_batch` of 2.5",
    "good:Asking": "it exits the program: asked",
    "good:number": "is a int",
    "good:function": "is a function",
    "good:Inherited": "is the class Inherited",
    "good:Gone": "AttributeError",
    "gone:Good": "ModuleNotFoundError",
    "exits:Kind": "it exits the program: 5",
    "exits_well:Kind": "it exits the program",
    "raises:Kind": "RuntimeError: xxx",
    "lines:Kind": "RuntimeError: a b",
    "mistyped:Kind": "SyntaxError",
    "odd:Kind": "Odd",
    "deep:Kind": "RecursionError",
    "empties:Kind": "ZeroDivisionError: Kind",
}


@pytest.mark.parametrize(("path", "says"), FAULTS.items(), ids=FAULTS)
def test_an_allowed_kind_that_cannot_be_had_gets_a_sentence(path, says):
    with pytest.raises(ConfigError) as refused:
        kinds.resolve(f"{PACKAGE}.{path}", [PACKAGE])
    assert (says in str(refused.value), "\n" in str(refused.value)) == (True, False)
    assert len(str(refused.value)) < 600


def test_an_allowed_kind_is_taken_as_a_class_or_ready_made_and_that_of_an_entry_point_needs_no_leave():
    for attribute, allowed in (("Good", PACKAGE), ("good", f"{PACKAGE}.good")):
        assert kinds.resolve(f"{PACKAGE}.good:{attribute}", [allowed]).task == "classify"
    assert kinds.resolve("experts.resnet:resnet18") is kinds.resolve("resnet18")
    with pytest.raises(ConfigError, match="give --allow-kind experts "):
        kinds.resolve("experts.resnet:ResNet")


BOARD = """
board: mixed
experts:
  good: {{kind: "foreign_kinds.good:Good", labels: [ok, bad], input: 32, reject: [bad]}}
  other: {{kind: "foreign_kinds.good:{other}", labels: [ok, bad], input: 32, reject: [bad]}}
components:
  A: {{inspect: good}}
  B: {{inspect: other}}
"""


def mixed(tmp_path, other):
    board, store = tmp_path / "mixed.yaml", tmp_path / "store"
    board.write_text(BOARD.format(other=other))
    chosen = rules.load(board).experts
    good = kinds.resolve(chosen["good"].kind, [PACKAGE])
    state = good.skeleton(chosen["good"]).state_dict()
    for expert in chosen.values():
        Store(store).put(expert.weights, kind=expert.kind, labels=expert.labels, input_size=32, state=state)
    return board, store


@pytest.mark.parametrize("other", ["Leaving", "Failing"])
def test_a_kind_that_fails_fails_its_images_alone(tmp_path, pictures, other):
    board, store = mixed(tmp_path, other)
    shown = [Picture(pictures[n].image, "AB"[n % 2], name=f"{n}") for n in range(6)]
    with Inspector(board, store=store, memory="100MB", profile=None, allow_kinds=[PACKAGE]) as line:
        results = {result.request.image: result for result in line.stream(shown)}
    assert {name: result.verdict is None for name, result in results.items()} == {f"{n}": n % 2 == 1 for n in range(6)}
    words = "exits the program" if other == "Leaving" else "bad numbers"
    assert all((words in str(result.error)) == (result.verdict is None) for result in results.values())


@pytest.mark.parametrize("other", ["Quitting", "Leaving", "NoNetwork", "Failing"])
def test_measuring_a_kind_that_fails_ends_nothing(tmp_path, other):
    board, store = mixed(tmp_path, other)
    expert = rules.load(board).experts["other"]
    device = CpuDevice(Store(store), {expert.kind: kinds.resolve(expert.kind, [PACKAGE])}, 1)
    cost = device.measure(expert)
    assert (cost.max_batch, cost.weights_bytes) == (1, 4096)
    device.prepare([expert])


def test_the_commands_ask_for_leave(tmp_path, call):
    board, store = mixed(tmp_path, "Good")
    images = make(tmp_path / "images", "A/a.png")
    given = ("--board", board, "--images", images, "--store", store, "--memory", "100MB")
    said = call(*given, "--out", tmp_path / "refused", command=inspect)
    assert (said.status, "--allow-kind foreign_kinds" in said.words) == (2, True)
    said = call(*given, "--out", tmp_path / "allowed", "--allow-kind", PACKAGE, command=inspect)
    assert said.status == 3, said.err
    said = call("verify", "--store", store, command=experts_command)
    assert (said.status, "--allow-kind foreign_kinds" in said.words) == (1, True)
    assert call("verify", "--store", store, "--allow-kind", PACKAGE, command=experts_command).status == 0


@pytest.mark.parametrize("kind", ["subprocess:Popen", "../evil:K", f"{MARK}:Good", ""])
def test_a_kind_in_a_board_file_is_refused_with_status_2(tmp_path, call, foreign, kind):
    board, images = tmp_path / "b.yaml", make(tmp_path / "images", "A/a.png")
    text = f'board: b\nexperts:\n  a: {{kind: "{kind}", labels: [ok, bad], input: 32, reject: [bad]}}\n'
    board.write_text(text + "components:\n  A: {inspect: a}\n")
    said = call("--board", board, "--images", images, "--out", tmp_path / "o", command=inspect)
    assert (said.status, said.out, "kind" in said.words) == (2, "", True)
    assert not foreign.exists()


def test_a_package_in_the_working_folder_is_found_once_it_is_allowed(tmp_path, call, monkeypatch):
    (tmp_path / "kinds_at_hand.py").write_text("raise RuntimeError('it was found')")
    (tmp_path / "x.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    given = ("import", "t/x", "x.safetensors", "--kind", "kinds_at_hand:Kind", "--input", "32", "--labels", "a,b")
    said = call(*given, "--store", tmp_path / "store", "--allow-kind", "kinds_at_hand", command=experts_command)
    assert (said.status, "RuntimeError: it was found" in said.words) == (2, True)
