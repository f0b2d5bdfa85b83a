"""`coe-experts bundle` and `install`: a board goes to a second box whole, or not at all."""

import errno
import json
import os
import shutil
import zipfile
from functools import partial

import common_trunk
import cv2
import numpy as np
import pytest
from full_disk import disk_of
from killed_at_step import killed_at
from lamp import LOGITS, lamp

from coe.board import rules
from coe.cli import experts_command
from coe.cli.experts_bundle import Bundle, Install
from coe.core import Expert
from coe.errors import StoreError
from coe.inspector import weights_used
from coe.store import bundle_file, kinds
from coe.store.bundle_file import BEFORE, CONTENTS
from coe.store.reference_reader import EncodedReference
from coe.store.references import NewReference, References
from coe.store.store import Store

BOARD = """
board: lamps
experts:
  left: {kind: onnx, labels: [dark, bright], input: 32}
  right: {kind: onnx, labels: [dark, bright], input: 32}
components:
  L: {inspect: left, then: {dark: NG, bright: OK}}
  R: {inspect: right, then: {dark: NG, bright: OK}}
"""
IDS = ("lamps/left", "lamps/right")


def put(store, model, source):
    for id in IDS:
        store.put(id, kind="onnx", labels=["dark", "bright"], input_size=32, file=model, source=source, outputs=LOGITS)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A board of two small experts as a bundle, beside the model that they are."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "lamps.yaml").write_text(BOARD, encoding="utf-8")
    lamp(folder / "lamp.onnx")
    put(Store(folder / "store"), folder / "lamp.onnx", "theirs")
    Bundle(board=folder / "lamps.yaml", to=folder / "lamps.coe", files=None, store=folder / "store").run()
    return folder / "lamps.coe"


@pytest.fixture
def install(tmp_path, call):
    def run(file, *more):
        at = ("--store", tmp_path / "box", "--rules", tmp_path / "rules")
        return call("install", file, *at, *more, command=experts_command).status

    return run


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.slow
def test_variants_and_bodies_go_along(shared_trunk, install, tmp_path):
    store = Store(shared_trunk)
    (tmp_path / "trunk.yaml").write_text(common_trunk.BOARD, encoding="utf-8")
    Bundle(board=tmp_path / "trunk.yaml", to=tmp_path / "trunk.coe", files=None, store=store.root).run()
    assert install(tmp_path / "trunk.coe") == 0
    box = Store(tmp_path / "box")
    for id in store.ids():
        there, here = box.check(id), store.manifest(id)
        assert (there.checksum, there.body, set(there.variants)) == (here.checksum, here.body, set(here.variants))


def test_what_is_there_is_replaced_only_if_that_is_said_and_kept(packed, install, tmp_path):
    assert install(packed) == 0
    box = Store(tmp_path / "box")
    put(box, packed.with_name("lamp.onnx"), "mine")
    (tmp_path / "rules" / "lamps.yaml").write_text("# mine\n", encoding="utf-8")
    before = content(tmp_path)
    assert install(packed) == 2
    assert content(tmp_path) == before
    assert install(packed, "--replace") == 0
    assert [(box.manifest(id).source, box.manifest(id).version) for id in IDS] == [("theirs", 3)] * 2
    assert box.earlier(IDS[0], 2).source == "mine"
    assert (tmp_path / "rules" / f"lamps.yaml{BEFORE}").read_text() == "# mine\n"


def changed(packed, to, *, files=None, said=None):
    """Write a bundle with other files (None: without), and with other words in its own list."""
    with zipfile.ZipFile(packed) as bundle:
        content = {name: bundle.read(name) for name in bundle.namelist()}
    for name, change in (files or {}).items():
        content[name] = change(content.get(name))
    if said:
        stated = json.loads(content[CONTENTS])
        content[CONTENTS] = json.dumps(stated | said(stated)).encode()
    with zipfile.ZipFile(to, "w") as bundle:
        for name, data in content.items():
            if data is not None:
                bundle.writestr(name, data)
    return to


EVIL = ("store/../../evil", "/evil", "store/.history/evil")
BOARD_AT = "rules/lamps.yaml"
CHANGES = {
    "flipped": {"files": {BOARD_AT: lambda data: data[:-1] + b" "}},
    "lost": {"files": {BOARD_AT: lambda data: None}},
    "more": {"files": {"store/lamps/more": lambda data: b"more"}},
    "fewer": {"said": lambda stated: {"experts": stated["experts"][1:]}},
    "evil": {
        "files": dict.fromkeys(EVIL, lambda data: BOARD.encode()),
        "said": lambda stated: {"files": stated["files"] | dict.fromkeys(EVIL, stated["files"][BOARD_AT])},
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_bundle_that_is_not_as_it_says_changes_nothing(packed, install, tmp_path, change):
    (tmp_path / "in").mkdir()
    assert install(changed(packed, tmp_path / "in" / "bad.coe", **CHANGES[change])) == 2
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name or path.name == "manifest.json"]


@pytest.mark.parametrize("size", [0, 100, 0.5, 0.99])
def test_a_bundle_that_is_cut_off_or_none_at_all_is_refused(packed, install, tmp_path, size):
    data = packed.read_bytes()
    (tmp_path / "half.coe").write_bytes(data[: int(size * len(data)) if size < 1 else int(size)])
    assert install(tmp_path / "half.coe") == 2
    assert install(tmp_path / "none.coe") == 2


def test_a_bundle_of_a_later_version_is_not_called_damaged(packed, tmp_path):
    later = changed(packed, tmp_path / "later.coe", said=lambda stated: {"format": 2, "made_by": "coe 99.1"})
    with pytest.raises(StoreError, match=r"coe 99\.1"):
        bundle_file.read(later)


def test_an_install_that_is_killed_anywhere_opens_no_line_or_the_whole_board(packed, tmp_path):
    """Each expert of the bundle differs from that of the store: a board of both would be half installed."""
    first = tmp_path / "first"

    def run(**places):
        Install(file=packed, replace=True, **places).run()

    run(rules_at=first / "rules", store=first / "box")
    put(Store(first / "box"), packed.with_name("lamp.onnx"), "mine")
    step, was_killed, refused = 1, True, 0
    while was_killed:
        root = tmp_path / "killed"
        shutil.copytree(first, root)
        was_killed = killed_at(step, partial(run, rules_at=root / "rules", store=root / "box"))
        box = Store(root / "box")
        sources = {box.check(id).source for id in IDS}
        try:
            weights_used.read_manifests(rules.load(root / "rules" / "lamps.yaml"), box)
            assert len(sources) == 1, f"step {step}: some of each"
        except StoreError:
            refused += 1
        run(rules_at=root / "rules", store=root / "box")
        assert {box.check(id).source for id in IDS} == {"theirs"}
        weights_used.read_manifests(rules.load(root / "rules" / "lamps.yaml"), box)
        assert not (box.root / ".install").exists()
        shutil.rmtree(root)
        step += 5
    assert 2 < refused < step // 5


def test_a_full_disk_changes_nothing(packed, install, tmp_path, call):
    with disk_of(300):
        assert install(packed) == 4
        at = ("--to", tmp_path / "more.coe", "--store", packed.with_name("store"))
        assert call("bundle", packed.with_name("lamps.yaml"), *at, command=experts_command).status == 4
    assert not (tmp_path / "more.coe").exists()
    assert Store(tmp_path / "box").ids() == []
    assert install(packed) == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_board_file_that_cannot_be_written_leaves_the_experts_as_they_are(
    packed, install, tmp_path, number, monkeypatch
):
    """The board files may lie on another disk than the experts."""
    put(Store(tmp_path / "box"), packed.with_name("lamp.onnx"), "ours")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "lamps.yaml").write_text(BOARD + "# ours\n")
    before = content(tmp_path / "box"), content(tmp_path / "rules")

    def no_room(source, target):
        raise OSError(number, os.strerror(number), str(target))

    monkeypatch.setattr(shutil, "copyfile", no_room)
    assert install(packed, "--replace") in (2, 4)
    assert (content(tmp_path / "box"), content(tmp_path / "rules")) == before
    monkeypatch.undo()
    Store(tmp_path / "box").check_installed("lamps")
    assert install(packed, "--replace") == 0
    assert (tmp_path / "rules" / "lamps.yaml.before").read_text().endswith("# ours\n")


def test_a_half_install_goes_on_with_its_own_bundle_alone(packed, install, tmp_path, monkeypatch):
    put(Store(tmp_path / "box"), packed.with_name("lamp.onnx"), "ours")
    other = tmp_path / "other.coe"
    shutil.copy(packed, other)

    def killed(*_):
        raise OSError(errno.EIO, "the disk ends here")

    monkeypatch.setattr(bundle_file, "put_all", killed)
    assert install(packed, "--replace") == 2
    monkeypatch.undo()
    with pytest.raises(StoreError):
        Store(tmp_path / "box").check_installed("lamps")
    assert install(other) == 2, "another bundle replaces nothing without --replace"
    assert install(packed) == 0


def test_recipes_references_and_calibrations_go_along(packed, tmp_path, install, call):
    store = Store(shutil.copytree(packed.with_name("store"), tmp_path / "store"))
    expert = Expert("diff", "difference", ("different",), 64, "lamps/diff")
    state = kinds.resolve("difference").skeleton(expert).state_dict()
    store.put("lamps/diff", kind="difference", labels=expert.labels, input_size=64, state=state)
    level = np.full((64, 64, 3), 90, np.uint8)
    image, spread = (cv2.imencode(".png", one)[1].tobytes() for one in (level, level[:, :, 0] * 0))
    References(store).put("lamps/D", NewReference(EncodedReference(image, spread), 64, 64, 1))
    more = "  diff: {kind: difference, labels: [different], input: 64}\ncomponents:"
    board = tmp_path / "lamps.yaml"
    shown = "  D: {inspect: diff, reference: D, then: {different: NG, none: OK}}\n"
    board.write_text(BOARD.replace("components:", more) + shown, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("side: top\n", encoding="utf-8")
    options = ("--to", tmp_path / "b.coe", "--file", tmp_path / "recipe.yaml", "--store", store.root)
    there = ("--to", tmp_path / "recipe.yaml", "--store", store.root)
    assert call("bundle", board, *there, command=experts_command).status == 2, "it is no bundle, and would be lost"
    for _ in range(2):  # a bundle is replaced
        made = call("bundle", board, *options, command=experts_command)
    assert made.status == 0, made.words
    assert install(tmp_path / "b.coe") == 0
    assert References(Store(tmp_path / "box")).ids() == ["lamps/D"]
    assert (tmp_path / "rules" / "lamps.files" / "recipe.yaml").read_text() == "side: top\n"
