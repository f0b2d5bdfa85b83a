"""`coe-experts import`: labelled pictures judged at once, folders of weights, backbones, models in several files."""

import shutil

import onnx
import pytest
import torch
from lamp import BOARD, STATED, lamp, picture
from safetensors.torch import save_file

from coe.board import rules
from coe.cli import experts_command
from coe.core import Expert, Finding, Verdict
from coe.store import kinds
from coe.store.store import Store

SAID = ("--input", "32", "--no-prepare", *STATED)
LAMP = ("--kind", "onnx", *SAID, "--labels", "dark,bright")
BACKBONE = ("--kind", "narrow", "--input", "32", "--as-backbone")


@pytest.fixture
def run(tmp_path, call, monkeypatch):
    """Return a function that runs `coe-experts` with a store, in a folder of its own."""
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    return lambda *arguments: call(*arguments, "--store", tmp_path / "store", command=experts_command)


@pytest.fixture
def bring(run, tmp_path):
    """Return a function that imports a lamp that is there, with options."""
    lamp(tmp_path / "lamp.onnx")
    return lambda *options, id="b/lamp": run("import", id, tmp_path / "lamp.onnx", *options)


def lamps(folder, *names):
    """Make a folder of lamps of these names."""
    folder.mkdir()
    for name in names:
        lamp(folder / f"{name}.onnx")
    return folder


def shown(folder, **levels):
    """Make pictures of so many grey levels, by label."""
    for label, some in levels.items():
        for number, level in enumerate(some):
            picture(folder / label / f"{number}.png", level)
    return folder


def stored(root):
    return Store(root / "store").manifest("b/lamp")


def state(labels=2):
    kind = kinds.resolve("narrow")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        expert = Expert("x", "narrow", tuple(map(str, range(labels))), 32, "t/x")
        return dict(kind.skeleton(expert).state_dict())


def test_labelled_pictures_are_judged_at_once(bring, run, tmp_path):
    labelled = shown(tmp_path / "labelled", dim=[5])
    given = (*LAMP, "--images", labelled)
    said = bring(*given)
    assert (said.status, "'dim'" in said.words, (tmp_path / "store").exists()) == (2, True, False)
    (labelled / "dim").rename(labelled / "dark")
    shown(labelled, dark=range(5, 100, 5), bright=range(200, 250, 5))
    said = bring(*given)
    assert (said.status, "lamp: 29 of 29" in said.out) == (0, True)
    picture(labelled / "bright" / "odd.png", 20)
    (labelled / "bright" / "0.png").unlink()
    said = bring(*given)
    assert (said.status, "lamp: 28 of 29" in said.out) == (0, True)
    assert "bright/odd.png: expected bright" in said.out
    # The layout of `evaluate` is taken, too.
    shutil.move(labelled, tmp_path / "lamp")
    labelled.mkdir()
    shutil.move(tmp_path / "lamp", labelled / "lamp")
    said = bring(*given)
    assert ("lamp: 28 of 29" in said.out, "`coe-experts restore b/lamp@2`" in said.out) == (True, True)
    assert run("restore", "b/lamp@2").status == 0
    (labelled / "lamp" / "dark" / "b.png").write_bytes(b"no picture")
    said = bring(*given)
    assert (said.status, "dark/b.png" in said.words, "28 of 29" in said.out) == (1, True, True)
    # A board's folders of components say nothing of one expert: the folder to give is named.
    shutil.move(labelled / "lamp", labelled / "L1")
    said = bring(*given)
    assert (said.status, str(labelled / "L1") in said.words) == (2, True)
    said = bring(*LAMP)
    assert (said.status, "nothing was checked" in said.out) == (0, True)


OWN = """
from dataclasses import replace
from coe.errors import ImageError
from coe.store import kinds

narrow = kinds.resolve("narrow")


class Own(type(narrow)):
    preprocessing = None
    max_batch = 1

    def forward(self, module, images):
        assert len(images) == 1
        return super().forward(module, images)

    def preprocess(self, image, expert):
        if image.max() > 250:
            raise ImageError("is too bright")
        return super().preprocess(image, replace(expert, preprocessing=narrow.preprocessing))
"""


def test_a_kind_that_states_nothing_must_be_right_all_the_same(run, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    save_file(state(), tmp_path / "x.safetensors")
    shown(tmp_path / "labelled", ok=[100], bad=[100])
    options = ("--kind", "own:Own", "--allow-kind", "own", "--input", "32", "--labels", "ok,bad", "--no-prepare")
    line = ("import", "b/x", tmp_path / "x.safetensors", *options, "--images", tmp_path / "labelled")
    said = run(*line)
    assert (said.status, "1 of 2" in said.words, list(Store(tmp_path / "store").ids())) == (2, True, []), said.err
    assert run(*line, "--force").status == 0
    assert "1 of 2" in Store(tmp_path / "store").manifest("b/x").unproven
    assert run(*line, "--right", "0.5").status == 0
    assert "not proven" in Store(tmp_path / "store").manifest("b/x").unproven  # two pictures are few
    shown(tmp_path / "labelled", ok=[100, 255], bad=[100, 255])
    said = run(*line, "--right", "0.5")
    assert (said.status, said.words.count("is too bright")) == (1, 2), "who is refused is named, and the others count"
    assert run(*line[:-2]).status == 0
    assert "not proven" in Store(tmp_path / "store").manifest("b/x").unproven


def test_a_folder_of_weights_becomes_experts_and_a_draft(run, tmp_path):
    folder = lamps(tmp_path / "weights", "lamp")
    torch.save({"state_dict": state(), "epoch": 3}, folder / "Body A.pth.tar")
    save_file(state(), folder / "body-b.safetensors")
    (folder / "broken.pt").write_bytes(b"no weights")
    (folder / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "readme.md").write_text("weights")
    shown(tmp_path / "labelled" / "lamp", ok=[10, 20], bad=[230])
    options = ("--kind", "narrow", "--labels", "ok,bad", "--no-prepare", *STATED, "--normalize", "0..255")
    (folder / "model.yaml").write_text("input: 32\n")
    said = run("import", "line7", folder, *options, "--images", tmp_path / "labelled")
    assert (said.status, "lamp.onnx" in said.words) == (1, False)
    assert all(word in said.words for word in ("broken.pt:", "git lfs pull", "left out: readme.md"))
    assert all(word in said.out for word in ("3 of 5 files imported", "lamp: 3 of 3"))
    assert Store(tmp_path / "store").ids() == ["line7/Body-A", "line7/body-b", "line7/lamp"]
    board = rules.load(tmp_path / "here" / "line7.yaml")
    assert {id: expert.weights for id, expert in board.experts.items()} == {
        name: f"line7/{name}" for name in ("Body-A", "body-b", "lamp")
    }
    for name, component in board.components.items():
        said_ok = board.router.next(component.root, Finding(name, "fp32", "ok", 1.0))
        assert said_ok.verdict is Verdict.REVIEW


@pytest.mark.parametrize("has_table", [False, True])
def test_a_file_of_a_folder_that_its_pictures_refute_stays_out(run, tmp_path, has_table):
    folder, labelled = lamps(tmp_path / "weights", "lamp", "other"), tmp_path / "labelled"
    shown(labelled if has_table else labelled / "lamp", dark=range(5, 15), bright=range(240, 250))
    rows = [f"{label}/{n}.png,lamp,{label}" for label in ("dark", "bright") for n in range(10)]
    table = labelled / "images.csv"
    if has_table:
        table.write_text("\n".join(["path,expert,label", *rows]))
    options = (*SAID, "--labels", "bright,dark", "--images")
    for images_at in (labelled, table) if has_table else (labelled,):
        said = run("import", "b", folder, *options, images_at)
        assert (said.status, "--labels dark,bright" in said.words) == (1, True)
        assert Store(tmp_path / "store").ids() == ["b/other"]
    if has_table:
        table.write_text("\n".join(["path,expert,label", *rows, "dark/1.png,othr,dark"]))
    else:
        (labelled / "othr").mkdir()
    said = run("import", "b", folder, *options, labelled)
    assert (said.status, "othr" in said.words) == (1, True)


def test_a_draft_replaces_no_file(run, tmp_path):
    given = ("import", "b", lamps(tmp_path / "weights", "lamp"), *SAID, "--labels", "dark,bright")
    (mine := tmp_path / "here" / "b.yaml").write_text("mine")
    said = run(*given)
    assert (said.status, "b.yaml" in said.words) == (0, True)
    assert run(*given, "--draft", mine).status == 2
    assert mine.read_text() == "mine"
    said = run(*given, "--draft", tmp_path / "other.yaml")
    assert (said.status, "lamp" in rules.load(tmp_path / "other.yaml").experts) == (0, True)


@pytest.mark.parametrize("more", [("--board", "b.yaml"), ("--as-backbone",), ()])
def test_a_draft_that_nobody_would_write_is_refused(run, tmp_path, more):
    weights = (lamps(tmp_path / "weights", "lamp"),) if more else ()
    said = run("import", "b", *weights, *more, "--draft", tmp_path / "other.yaml")
    assert (said.status, "--draft" in said.words) == (2, True)


@pytest.mark.parametrize(
    ("id", "name", "says"),
    [
        ("b/x", "lamp.onnx", "a board's name alone"),
        ("b", "notes.txt", "no file of weights"),
        ("b/lamp", "saved_model.pb", "ONNX"),  # the model of another program
    ],
)
def test_folders_that_cannot_be_imported(run, tmp_path, id, name, says):
    (folder := lamps(tmp_path / "weights")).joinpath(name).write_text("x")
    said = run("import", id, folder, *LAMP)
    assert (said.status, says in said.words) == (2, True)


def test_two_files_of_one_name_are_both_refused(run, tmp_path):
    folder = lamps(tmp_path / "weights", "lamp")
    torch.save(state(), folder / "lamp.pt")
    said = run("import", "b", folder, *LAMP)
    assert (said.status, said.err.count("2 files would be")) == (1, 2)
    assert not (tmp_path / "store").exists()


def test_a_backbone_has_no_head_judges_nothing_and_trainings_start_from_it(run, tmp_path):
    many = {f"model.{name}": value for name, value in state(1000).items()}
    torch.save({"state_dict": many}, tmp_path / "x.pth")
    assert run("import", "base/x", tmp_path / "x.pth", *BACKBONE[:-1], "--labels", "ok,bad").status == 2
    assert run("import", "base/x", tmp_path / "x.pth", *BACKBONE).status == 0
    store = Store(tmp_path / "store")
    kept, whole = store.load("base/x"), state(1000)
    assert kept.keys() == {name for name in whole if not name.startswith("fc.")}
    assert all(torch.equal(kept[name], whole[name]) for name in kept)
    assert run("verify").status == 0
    assert run("prepare").status == 0
    (tmp_path / "b.yaml").write_text(
        "board: b\nexperts:\n  x: {kind: narrow, labels: [ok, bad], input: 32, reject: [bad], weights: base/x}\n"
        "components:\n  A: {inspect: x}\n"
    )
    picture(tmp_path / "labelled" / "x" / "ok" / "a.png", 9)
    said = run("evaluate", tmp_path / "b.yaml", "--images", tmp_path / "labelled")
    assert (said.status, "a backbone" in said.words) == (2, True)
    data = shown(tmp_path / "data", ok=range(200, 203), bad=range(20, 23))
    options = (*BACKBONE[:-1], "--epochs", "1", "--no-prepare", "--data", data)
    said = run("train", "b/x", *options, "--body", "base/x", "--freeze", "conv1,bn1")
    assert said.status == 0, said.err
    assert torch.equal(store.load("b/x")["conv1.weight"], whole["conv1.weight"])
    assert run("train", "b/y", *options, "--init", "base/x").status == 0


def test_what_makes_no_backbone_is_refused(run, tmp_path):
    lamp(tmp_path / "x.onnx")
    for options in (("--labels", "ok,bad"), ("--images", "."), ("--board", "demo"), ("--kind", "onnx")):
        assert run("import", "base/x", tmp_path / "x.onnx", "--input", "32", "--as-backbone", *options).status == 2
        assert not (tmp_path / "store").exists()
    other = {name: value if name != "conv1.weight" else torch.ones(2, 2) for name, value in state().items()}
    for tensors, word in (({"conv1.weight": torch.ones(3)}, "lacks"), (other, "needs conv1.weight")):
        torch.save(tensors, tmp_path / "x.pth")
        said = run("import", "base/x", tmp_path / "x.pth", *BACKBONE)
        assert (said.status, word in said.words) == (2, True)


def test_a_model_of_two_files_goes_into_the_store_as_one_and_one_in_a_newer_form_says_so(bring, run, tmp_path):
    model = onnx.load(str(tmp_path / "lamp.onnx"))
    model.ir_version = 99
    (tmp_path / "new.onnx").write_bytes(model.SerializeToString())
    said = run("import", "b/lamp", tmp_path / "new.onnx", *LAMP)
    assert (said.status, "newer than onnxruntime" in said.words) == (2, True), said.err
    model = onnx.load(str(tmp_path / "lamp.onnx"))
    for tensor in model.graph.initializer:
        tensor.raw_data = onnx.numpy_helper.to_array(tensor).tobytes()
    (home := tmp_path / "two").mkdir()
    onnx.save(model, str(home / "lamp.onnx"), save_as_external_data=True, location="lamp.onnx.data", size_threshold=0)
    labelled = shown(tmp_path / "labelled", dark=[5], bright=[250])
    said = run("import", "b/lamp", home / "lamp.onnx", *LAMP, "--images", labelled)
    assert (said.status, "2 of 2" in said.out) == (0, True)
    shutil.rmtree(home)
    assert run("verify", "b/lamp").status == 0


def test_what_nobody_says_is_asked_at_once_and_model_yaml_answers(bring, tmp_path):
    asked = bring("--no-prepare")
    assert asked.status == 2
    assert all(option in asked.words for option in ("--labels", "--resize", "--channels", "--activation"))
    asked = bring("--no-prepare", "--labels", "dark,bright")
    assert asked.status == 2
    assert all(f"{key}: " in asked.words for key in ("resize", "channels", "activation"))
    assert "normalize" not in asked.words  # it takes bytes
    said = "labels: [dark, bright]\nresize: stretch\nchannels: rgb\nactivation: softmax\n"
    (tmp_path / "model.yaml").write_text(said)
    assert bring("--no-prepare").status == 0
    found = stored(tmp_path)
    assert (found.labels, found.input_size) == (("dark", "bright"), 32)
    assert (found.preprocessing.resize, found.outputs.activation) == ("stretch", "softmax")
    # Options count before the file, and neither counts before what a record says.
    assert bring("--no-prepare", "--resize", "letterbox").status == 0
    assert stored(tmp_path).preprocessing.resize == "letterbox"
    (tmp_path / "model.yaml").write_text(said.replace("[dark, bright]", "[no, on]"))  # as written, not False and True
    assert bring("--no-prepare").status == 0
    assert stored(tmp_path).labels == ("no", "on")
    for more, word in (
        ("normalize: imagenet", "--force"),
        ("size: 3", "'size'"),
        ("labels: [bright, dark]", "labels"),
        ("kind:", "kind"),
        ("input: big", "pixels"),
        ("[", ""),
    ):
        (tmp_path / "model.yaml").write_text(said + more)
        refused = bring("--no-prepare")
        assert (refused.status, word in refused.words) == (2, True)


def test_model_yaml_is_held_against_the_board(bring, tmp_path):
    (board := tmp_path / "lamps.yaml").write_text(BOARD)
    said = "resize: stretch\nchannels: rgb\nactivation: softmax\n"

    def held(text, *options):
        (tmp_path / "model.yaml").write_text(said + text)
        return bring("--board", board, "--no-prepare", *options, id="lamps/lamp")

    assert held("labels: [bright, dark]\n").status == 0  # in the order of the outputs
    assert Store(tmp_path / "store").manifest("lamps/lamp").labels == ("bright", "dark")
    for more, word in (("labels: [cat, dog]", "cat, dog"), ("input: 64", "64")):
        refused = held(more)
        assert (refused.status, word in refused.words, "model.yaml" in refused.words) == (2, True, True)
    assert held("", "--labels", "bright,dark").status == 2


def test_records_of_hugging_face_beside_a_model_count(run, tmp_path):
    folder = lamps(tmp_path / "w", "lamp")
    (folder / "config.json").write_text('{"id2label": {"0": "dark", "1": "bright"}}')
    (folder / "preprocessor_config.json").write_text('{"do_resize": true, "size": {"height": 32, "width": 32}}')
    said = run("import", "b/lamp", folder / "lamp.onnx", "--no-prepare", "--channels", "rgb")
    assert (said.status, "config.json" in said.words) == (0, True), said.err
    assert (stored(tmp_path).labels, stored(tmp_path).preprocessing.resize) == (("dark", "bright"), "stretch")
    assert run("import", "b/lamp", folder / "lamp.onnx", *LAMP[:-1], "dark,dim").status == 2
    for name in ("optimizer.pt", "rng_state_0.pth", "training_args.bin"):  # of Hugging Face's trainer
        (folder / name).write_bytes(b"x")
    assert run("import", "b/lamp", folder / "lamp.onnx", *LAMP[:-1], "dark,dim").status == 2
    lamp(folder / "other.onnx")  # whose records they are is open now
    said = run("import", "b/lamp", folder / "lamp.onnx", *LAMP[:-1], "dark,dim")
    assert (said.status, "config.json" in said.words) == (0, True), "which records were not used"
    (folder / "other.onnx").unlink()
    (folder / "config.json").write_text("{broken")
    assert run("import", "b/lamp", folder / "lamp.onnx", *LAMP).status == 2
