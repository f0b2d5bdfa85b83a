"""Files as trainers save them: the network's weights are found in them, it is said where, and nothing is guessed."""

import argparse
import collections
import datetime
import functools
import json
import pathlib
import random
import re
import sys
import tarfile
import types
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import narrow
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_line import Call
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torchvision import transforms
from torchvision.ops import FrozenBatchNorm2d
from torchvision.transforms import _presets as presets

from coe.bring.facts import Wishes, agree
from coe.bring.importing import Brought, bring
from coe.bring.unwrapping import unwrapped
from coe.cli import experts_command
from coe.core import Expert
from coe.errors import CoeError, ConfigError, StoreError
from coe.helpers.preprocessing import NORMALIZATIONS
from coe.store import kinds
from coe.store.kinds import Foreign
from coe.store.skeletons import skeleton
from coe.store.store import Store
from experts.checkpoint import read_checkpoint
from experts.efficientnet import efficientnet_lite0
from experts.resnet import resnet18
from experts.stated_steps import stated_sight
from experts.yolov5 import yolov5n

EXPERT = Expert("x", "narrow", ("ok", "bad"), 32, "t/x")
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def few_weights_and_kinds() -> Iterator[None]:
    """A file that does not fit is held against each kind: of two, that takes no second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(narrow, "HIDDEN", 64)
        patch.setattr(kinds, "names", lambda: ["narrow", "resnet18"])
        yield


def brought(path: Path, saved: object = None) -> Brought:
    """Import what a training saved, which is written first, without a command."""
    if saved is not None:
        torch.save(saved, path)
    return bring(path, EXPERT, kinds.resolve("narrow"), Wishes(), path.parent)


def network(seed: int = 1) -> nn.Module:
    kind: Any = kinds.resolve("narrow")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: nn.Module = kind.skeleton(EXPERT)
    return module


@pytest.fixture(scope="module")
def state() -> State:
    return dict(network().state_dict())


def under(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": value for name, value in state.items()}


def altered(state: State) -> State:
    return {name: value + 1 if value.is_floating_point() else value for name, value in state.items()}


def averaged(state: State) -> State:
    module = network()
    module.load_state_dict(state)
    return dict(torch.optim.swa_utils.AveragedModel(module).state_dict())


def training(state: State) -> dict[str, Any]:
    """What scripts save beside the weights: arguments, dates, paths, numbers, random states, optimizers."""
    optimizer = torch.optim.SGD([nn.Parameter(value) for value in state.values() if value.is_floating_point()], 0.1)
    return {
        "args": argparse.Namespace(model="narrow", lr=0.1, out=pathlib.Path("out"), betas=(0.9, 0.99)),
        "date": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        "took": datetime.timedelta(seconds=3),
        "where": pathlib.PureWindowsPath("c:/x"),
        "optimizer": optimizer.state_dict(),
        "best_acc1": torch.tensor(85.0),
        "metric": np.float64(0.5),
        "history": np.arange(6, dtype=np.int64).reshape(2, 3),
        "numpy_rng": np.random.default_rng(1).bit_generator.state,
        "legacy_rng": np.random.RandomState(1).get_state(),
        "python_rng": random.Random(1).getstate(),
        "rng_state": torch.get_rng_state(),
        "counts": collections.defaultdict(int, a=1),
        "last": collections.deque([1, 2], maxlen=3),
        "kinds": frozenset(("a", "b")),
        "augment": functools.partial(max, 1),
        "epoch": 3,
    }


WRAPPED: dict[str, Callable[[State], Any]] = {
    **{
        prefix: lambda s, prefix=prefix: under(prefix, s)
        for prefix in ("_orig_mod.", "module.", "model.", "backbone.", "net.module.", "a.b.c.", "module._orig_mod.")
    },
    "AveragedModel": averaged,
    "reference script": lambda s: {"model": s, **training(s)},
    "reference script with an average": lambda s: {"model": altered(s), "model_ema": averaged(s), **training(s)},
    "timm": lambda s: {"arch": "x", "state_dict": altered(s), "state_dict_ema": s, **training(s)},
    "weights": lambda s: {"weights": s, "epoch": 1},
    "teacher": lambda s: {"student": altered(s), "teacher": s},
    "teacher in one dict": lambda s: under("student.", altered(s)) | under("teacher.", s),
    "a teacher of another architecture": lambda s: {
        "model": s,
        "teacher": {"conv1.weight": torch.ones(2), "other": torch.ones(3)},
    },
    "lightning": lambda s: {
        "state_dict": under("model.", s)
        | {"loss.weight": torch.ones(3), "train_acc.tp": torch.ones(2)}
        | {"val_precision.tp": torch.ones(2), "bce.pos_weight": torch.ones(2), "cross_entropy.weight": torch.ones(2)},
        "hyper_parameters": {"lr": 0.1, "path": pathlib.Path("x")},
        "callbacks": {"ModelCheckpoint{}": {"best_model_score": torch.tensor(0.5), "kth": {"a": torch.ones(1)}}},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}}],
        "pytorch-lightning_version": "2.6.0",
    },
    "lightning's average": lambda s: {
        "state_dict": under("model.", s),
        "current_model_state": under("model.", altered(s)),
    },
    "the same twice": lambda s: {"last": s, "best": dict(s)},
    "profiled": lambda s: s | {"conv1.total_ops": torch.ones(1), "total_params": torch.ones(1)},
    "behind a Dropout": lambda s: {name.replace("fc.", "fc.1."): value for name, value in under("model.", s).items()},
    "parts that were compiled": lambda s: {
        f"model.{name.replace('layer1.', 'layer1._orig_mod.').replace('fc.', '_fsdp_wrapped_module.fc.')}": value
        for name, value in s.items()
    },
    "without counters": lambda s: {n: v for n, v in s.items() if not n.endswith("num_batches_tracked")},
    "halves": lambda s: {n: v.half() if v.is_floating_point() else v for n, v in s.items()},
    "halves of counters too": lambda s: {
        n: torch.tensor(70_000.0).half() if n.endswith("num_batches_tracked") else v for n, v in s.items()
    },
    "its last layer beside it": lambda s: {
        f"{'head' if n.startswith('fc.') else 'backbone'}.{n}": v for n, v in s.items()
    },
    "doubles": lambda s: {n: v.double() if v.is_floating_point() else v for n, v in s.items()},
}
SAID = {
    "teacher": "took the weights under 'teacher.'; it also holds a network under 'student.'",
    "timm": "took the weights under 'state_dict_ema.'; it also holds a network under 'state_dict.'",
    "reference script with an average": "took the weights under 'model_ema.module.'",
    "lightning": "left out: callbacks",
    "AveragedModel": "left out: n_averaged",
    "behind a Dropout": "took 'model.fc.1' as the layer 'fc'",
    "its last layer beside it": "took 'head.fc' as the layer 'fc'",
    "weights": "took the weights under 'weights.'",
    "parts that were compiled": "took _fsdp_wrapped_module., _orig_mod. out of the names",
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_weights_are_found_in_what_a_training_saves(tmp_path: Path, state: State, name: str) -> None:
    took = brought(tmp_path / "x.pt", WRAPPED[name](state))
    took.put(Store(tmp_path / "store"), "x.pt")
    stored, remarks = Store(tmp_path / "store").load("t/x"), " ".join(took.remarks)
    assert stored.keys() == state.keys()
    kept = state if name != "halves" else {n: v.half().to(v.dtype) for n, v in state.items()}
    assert all(torch.equal(stored[n], kept[n]) for n in state if not n.endswith("num_batches_tracked"))
    assert SAID.get(name, "") in remarks
    if name.endswith("."):
        assert f"took the weights under '{name}'" in remarks


def test_safetensors_have_wrappers_too(tmp_path: Path, call: Call, state: State) -> None:
    save_file(under("model.backbone.", state), tmp_path / "x.safetensors", metadata={"format": "pt", "by": "somebody"})
    options = ("--kind", "narrow", "--input", "32", "--labels", "ok,bad", "--no-prepare", "--store", tmp_path / "store")
    said = call("import", "t/x", tmp_path / "x.safetensors", *options, command=experts_command)
    assert (said.status, "under 'model.backbone.'" in said.words) == (0, True)


UNCLEAR: dict[str, Callable[[State], Any]] = {
    "two that fit": lambda s: {"left": s, "right": altered(s)},
    "two in one dict": lambda s: under("left.", s) | under("right.", altered(s)),
    "another head behind it": lambda s: under("backbone.", s) | {"head.weight": torch.ones(2, 2)},
    "a normalisation before it": lambda s: under("model.", s) | {"normalize.mean": torch.ones(3)},
    "a last layer of another name beside it": lambda s: {
        n.replace("fc.", "classifier.") if n.startswith("fc.") else f"backbone.{n}": v for n, v in s.items()
    },
    "an encoder and a classifier": lambda s: {"encoder": s, "classifier": {"0.weight": torch.ones(3, 2)}},
    "two layers in the place of the last": lambda s: (
        {n.replace("fc.", "fc.3."): v for n, v in s.items()} | {"fc.0.weight": torch.ones(4, 4)}
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_is_not_clear_is_refused(tmp_path: Path, state: State, name: str) -> None:
    with pytest.raises(StoreError, match=r"x\.pt|'x'"):
        brought(tmp_path / "x.pt", UNCLEAR[name](state))


def test_names_of_a_kind_that_maps_them_itself_are_left_alone(state: State) -> None:
    foreign = Foreign({f"other.{name}.x": value for name, value in state.items()})
    assert unwrapped(foreign, state, "x").state == foreign.state


def changed(change: Callable[[Any], None]) -> nn.Module:
    module = network()
    change(module)
    return module


def head(*layers: nn.Module) -> Callable[[Any], None]:
    def put(module: Any) -> None:
        module.fc = nn.Sequential(*layers, module.fc)

    return put


def freeze(module: Any) -> None:
    norm = FrozenBatchNorm2d(module.bn1.num_features)
    norm.load_state_dict(module.bn1.state_dict())
    module.bn1 = norm


def test_a_whole_network_is_taken(tmp_path: Path, state: State) -> None:
    for module in (network(), nn.DataParallel(network()), changed(head(nn.Dropout(0.3))), changed(freeze)):
        took = brought(tmp_path / "x.pt", {"model": module, "epoch": 3}).state
        assert took is not None
        assert all(torch.equal(took[n], state[n]) for n in state)


@pytest.mark.parametrize(
    "around",
    [
        lambda m: nn.Sequential(nn.Upsample(scale_factor=2), m),
        lambda m: nn.Sequential(transforms.Normalize((0.5,) * 3, (0.5,) * 3), m),
        lambda m: nn.Sequential(nn.Sequential(nn.ReflectionPad2d(2)), nn.DataParallel(m)),
        lambda m: nn.Sequential(m, nn.ReLU()),
    ],
)
def test_layers_around_a_whole_network_are_not_passed_over(tmp_path: Path, around: Callable[[Any], nn.Module]) -> None:
    torch.save({"model": around(network()), "criterion": nn.CrossEntropyLoss()}, tmp_path / "x.pt")
    with pytest.raises(StoreError, match="around the network"):
        unwrapped(read_checkpoint(tmp_path / "x.pt"), network().state_dict(), "x")


def test_layers_around_it_that_change_nothing_are_left_out(tmp_path: Path, state: State) -> None:
    torch.save(nn.Sequential(nn.Identity(), network(), nn.Dropout(0.1), nn.Softmax(dim=1)), tmp_path / "x.pt")
    taken = unwrapped(read_checkpoint(tmp_path / "x.pt"), state, "x")
    assert taken.state.keys() == state.keys()


OTHER_NETWORKS: dict[str, Callable[[Any], None]] = {
    "eps": lambda m: setattr(m.bn1, "eps", 0.01),
    "stride": lambda m: setattr(m.layer1.conv1, "stride", (1, 1)),
    "padding": lambda m: setattr(m.conv1, "padding", (0, 0)),
    "activation": lambda m: setattr(m, "relu", nn.ReLU6()),
    "pooling": lambda m: setattr(m, "avgpool", nn.AdaptiveMaxPool2d(1)),
    "a sigmoid behind": lambda m: setattr(m, "fc", nn.Sequential(m.fc, nn.Sigmoid())),
}


@pytest.mark.parametrize("name", OTHER_NETWORKS)
def test_a_whole_network_that_computes_something_else_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="computes something else"):
        brought(tmp_path / "x.pt", changed(OTHER_NETWORKS[name]))


def test_a_whole_network_for_more_labels_than_are_given_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="5 outputs"):
        brought(tmp_path / "x.pt", changed(lambda m: setattr(m, "fc", nn.Linear(m.fc.in_features, 5))))


def test_labels_by_text_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    module: Any = network()
    module.names = {str(number): f"c{number}" for number in range(11)}
    torch.save({"model": module}, tmp_path / "x.pt")
    assert read_checkpoint(tmp_path / "x.pt").labels == tuple(f"c{number}" for number in range(11))


ORDERED = ("bad", "odd", "ok")
STATED: dict[str, Any] = {
    "class_to_idx": {"ok": 2, "bad": 0, "odd": 1},
    "classes": ["bad", "odd", "ok"],
    "CLASSES": ("bad", "odd", "ok"),
    "idx_to_class": {0: "bad", 1: "odd", 2: "ok"},
    "id2label": {"0": "bad", "2": "ok", "1": "odd"},
    "meta": {"dataset_meta": {"classes": ("bad", "odd", "ok")}},
    "args": argparse.Namespace(class_names=["bad", "odd", "ok"], labels=["x", "x"], classes=3),
}


@pytest.mark.parametrize("key", STATED)
def test_labels_beside_the_weights_count(tmp_path: Path, state: State, key: str) -> None:
    torch.save({"state_dict": state, key: STATED[key]}, tmp_path / "x.pt")
    assert read_checkpoint(tmp_path / "x.pt").labels == ORDERED


def test_labels_in_two_orders_are_refused(tmp_path: Path, state: State) -> None:
    torch.save({"state_dict": state, "classes": ["a", "b"], "hyper_parameters": {"labels": ["b", "a"]}}, tmp_path / "x")
    with pytest.raises(StoreError, match="in two ways"):
        read_checkpoint(tmp_path / "x")


def test_what_is_no_labels_says_nothing_of_them(tmp_path: Path, state: State) -> None:
    itself: dict[str, Any] = {"classes": [1, 2], "labels": {"a": 3, "b": 9}, "class_names": "abc", "num_classes": 2}
    itself |= {"categories": {"ok": {"colour": 1}, "bad": [2]}, "mean": [0.0] * 3, "std": [0.0] * 3}
    itself["again"] = itself
    torch.save({"state_dict": state, "config": itself}, tmp_path / "x.pt")
    read = read_checkpoint(tmp_path / "x.pt")
    assert (read.labels, read.arguments) == (None, {})


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_a_normalisation_beside_the_weights_is_what_the_network_sees(
    tmp_path: Path, state: State, scale: float
) -> None:
    said = {"mean": [0.5 * scale, 0.25 * scale, 0.5 * scale], "std": (0.5 * scale,) * 3}
    torch.save({"state_dict": state, "config": {"data_preprocessor": said}}, tmp_path / "x.pt")
    seen = resnet18.read(tmp_path / "x.pt")
    assert seen.preprocessing.normalization == ((0.5, 0.25, 0.5), (0.5, 0.5, 0.5))
    assert seen.stated == {"mean", "std"}


def openmmlab(mean: str, std: str, to_rgb: bool = True) -> str:
    """The text of a configuration, as MMPretrain keeps it in a checkpoint."""
    seen = f"dict(\n    mean=[\n        {mean}\n    ],\n    num_classes=2,\n    std=[{std}],\n    to_rgb={to_rgb})"
    return f"data_preprocessor = {seen}\nmodel = dict(backbone=dict(depth=18), bbox=dict(target_means=[0.0, 0.0, 0.0]))"


HALF = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
EVALUATED = transforms.Compose([transforms.Resize(40), transforms.ToTensor(), transforms.Normalize(*HALF)])
SEEN: dict[str, Callable[[State], Any]] = {
    "arrays": lambda s: {"state_dict": s, "mean": np.array(HALF[0]), "std": np.array(HALF[1], np.float32)},
    "numbers of NumPy": lambda s: {"state_dict": s, "mean": [np.float64(0.5)] * 3, "std": [np.float32(0.25)] * 3},
    "tensors": lambda s: {"state_dict": s, "mean": torch.tensor(HALF[0]), "std": torch.tensor(HALF[1])},
    "keys of pictures": lambda s: {"state_dict": s, "image_mean": HALF[0], "image_std": HALF[1]},
    "keys of a module": lambda s: {"state_dict": s, "hyper_parameters": {"norm_mean": HALF[0], "norm_std": HALF[1]}},
    "configuration": lambda s: {"state_dict": s, "meta": {"cfg": openmmlab("127.5, 127.5, 127.5", "63.75, " * 3)}},
    "transforms": lambda s: {"state_dict": s, "transform": {"val": EVALUATED}},
    "one number for all channels": lambda s: {"state_dict": s, "hyper_parameters": {"mean": 0.5, "std": 0.25, "lr": 1}},
    "in two scales": lambda s: {
        "state_dict": s,
        "args": {"mean": [127.5] * 3, "std": [63.75] * 3},
        "data": dict(zip(("mean", "std"), HALF, strict=True)),
    },
    "one number in a list": lambda s: {"state_dict": s, "transform": transforms.Normalize([0.5], [0.25])},
    "a normalisation inside": lambda s: (
        under("model.", s)
        | {"normalize.mean": torch.full((1, 3, 1, 1), 127.5), "normalize.std": torch.full((1, 3, 1, 1), 63.75)}
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_normalisation_in_any_form_is_what_the_network_sees(tmp_path: Path, state: State, name: str) -> None:
    torch.save(SEEN[name](state), tmp_path / "x.pt")
    seen = resnet18.read(tmp_path / "x.pt")
    assert seen.preprocessing.normalization == HALF
    assert not any(name.endswith(("mean", "std")) and value.numel() == 3 for name, value in seen.state.items())


def test_mean_and_deviation_of_a_measure_say_nothing_of_pixels(tmp_path: Path, state: State) -> None:
    measured = {"mean": [0.9, 0.8, 0.7], "std": [0.05, 0.02, 0.03]}
    one = {"mean": 0.93, "std": 0.02}
    torch.save(
        {"state_dict": state, "cv": {"per_class_acc": measured, "folds": [measured]}, "val": one}, tmp_path / "x.pt"
    )
    assert resnet18.read(tmp_path / "x.pt").stated == frozenset()


JUDGED = transforms.Compose([transforms.Resize(48), transforms.CenterCrop(40), transforms.ToTensor()])
LEARNED = transforms.Compose([transforms.RandomResizedCrop(40), transforms.ToTensor()])
SQUARE = [transforms.Resize((40, 40), transforms.InterpolationMode.BICUBIC)]
SQUARE_CUT = [transforms.Resize((48, 48)), transforms.CenterCrop(40)]
MMLAB = "a = [dict(type='RandomResizedCrop', scale=9)]\ntest_pipeline = [{}, dict(type='CenterCrop', crop_size=40)]"
EDGE = "dict(type='ResizeEdge', scale=48, edge='short', backend='pillow')"
AREA = {"__class_fullname__": "albumentations.Resize", "height": 40, "width": 40, "interpolation": 3}
HYDRA = [{"_target_": "torchvision.transforms.Resize", "size": 48}, {"_target_": "CenterCrop", "size": 40}]
HUGGING = {"do_resize": True, "size": {"shortest_edge": 40}, "crop_pct": 0.8333, "resample": 2}
LEGACY = {"do_resize": True, "do_center_crop": True, "crop_size": 40, "resample": 2, "image_mean": [0.5] * 3}
CROP, NOTHING_SAID = ("center-crop", 48, 40, "bilinear-antialias"), ("letterbox", None, None, "area")
PRINTED = "Compose(\n  ToImage()\n  Resize(size=[40, 40], interpolation=InterpolationMode.BICUBIC, antialias=False)\n)"
TENSOR, FLOATS = transforms.Resize(48, antialias=False), transforms.ConvertImageDtype(torch.float)
SIGHTS: dict[str, tuple[Any, tuple[object, ...]]] = {
    "torchvision": ({"transform": JUDGED}, CROP),
    "of training and of judging": ({"train": LEARNED, "val": JUDGED}, CROP),
    "of training": ({"transform": LEARNED}, NOTHING_SAID),
    "that differ": ({"val": JUDGED, "test": SQUARE}, NOTHING_SAID),
    "both sides": ({"t": SQUARE}, ("stretch", None, 40, "bicubic-antialias")),
    "both sides, and a crop": ({"t": SQUARE_CUT}, ("stretch", *CROP[1:])),
    "of published weights": ({"t": presets.ImageClassification(crop_size=40, resize_size=48)}, CROP),
    "OpenMMLab": ({"cfg": MMLAB.format(EDGE)}, CROP),
    "OpenMMLab of before": ({"cfg": MMLAB.format("dict(type='Resize', size=(48, -1))")}, (*CROP[:3], "bilinear")),
    "albumentations": ({"val": [AREA]}, ("stretch", None, 40, "area")),
    "Hydra": ({"t": HYDRA}, CROP),
    "Hugging Face": (HUGGING, CROP),
    "Hugging Face of before": ({**LEGACY, "size": 48, "feature_extractor_type": "CLIPFeatureExtractor"}, CROP),
    "Hugging Face of before, a square": ({**LEGACY, "size": 48}, ("stretch", *CROP[1:])),
    "Levit": ({**LEGACY, "size": 42, "image_processor_type": "LevitImageProcessor"}, CROP),
    "printed": ({"val_transform": str(JUDGED)}, CROP),
    "printed words": ({"t": PRINTED}, ("stretch", None, 40, "bicubic")),
    "a tensor": ({"t": [transforms.ToTensor(), TENSOR, transforms.CenterCrop(40)]}, (*CROP[:3], "bilinear")),
    "a tensor from the start": ({"t": [TENSOR, transforms.CenterCrop(40), FLOATS]}, (*CROP[:3], "bilinear")),
    "a picture": ({"t": [TENSOR, transforms.CenterCrop(40), transforms.ToTensor()]}, CROP),
}


@pytest.mark.parametrize("name", SIGHTS)
def test_the_steps_by_which_pictures_come_to_size_count(tmp_path: Path, state: State, name: str) -> None:
    content, expected = SIGHTS[name]
    torch.save({"state_dict": state, "hyper_parameters": content}, tmp_path / "x.pt")
    read = resnet18.read(tmp_path / "x.pt")
    seen = read.preprocessing
    assert (seen.resize, seen.shortest_edge, read.input_size, seen.interpolation) == expected
    assert seen.rounds_down is (name == "Levit" or name.startswith("Hugging Face"))


SCALED = [transforms.Resize(48), transforms.CenterCrop(40)]
PADDED = {"__class_fullname__": "PadIfNeeded", "min_height": 40, "min_width": 40, "border_mode": 0, "value": 9}
LONGEST = {"__class_fullname__": "LongestMaxSize", "max_size": 40, "p": 1.0}
CLAHE = {"__class_fullname__": "albumentations.CLAHE", "p": 1.0}
AS_LISTED = (
    "test_pipeline = [dict(type='LoadImageFromFile'), {}, dict(type='Resize', size=40), dict(type='PackInputs')]"
)
ASKED: dict[str, tuple[Any, dict[str, tuple[str, ...]]]] = {
    "grey": ({"val": [*SCALED, transforms.Grayscale(3), transforms.ToTensor()]}, {"steps": ("Grayscale",)}),
    "several": ({"val": [AREA, CLAHE, {"__class_fullname__": "Equalize", "p": 1}]}, {"steps": ("CLAHE, Equalize",)}),
    "of no name": ({"tf": transforms.Compose([*SCALED, transforms.Pad(4)])}, {"steps": ("Pad",)}),
    "OpenMMLab": ({"cfg": AS_LISTED.format("dict(type='Solarize', thr=9)")}, {"steps": ("Solarize",)}),
    "other sizes": ({"val": JUDGED, "test": SQUARE}, {"resize": ("--resize",)}),
    "other means": (
        {"val": [*SCALED, transforms.Normalize(*HALF)], "test": [*SCALED, transforms.Normalize(HALF[1], HALF[0])]},
        {"mean": ("--normalize",)},
    ),
    "no crop": ({"val": EVALUATED}, {"resize": ("Resize", "--resize")}),
    "no crop of no name": ({"tf": EVALUATED}, {"resize": ("--resize",)}),
    "no crop of a training": ({"tf": [transforms.Resize(40), transforms.RandomHorizontalFlip()]}, {}),
    "no square": ({"val": [transforms.Resize((40, 80))]}, {"resize": ("--resize",)}),
    "scaled twice": ({"val": [*SCALED, transforms.Resize(32)]}, {"resize": ("--resize",)}),
    "kept in its aspect": ({"test": [{"type": "Resize", "scale": 40, "keep_ratio": True}]}, {"resize": ("Resize",)}),
    "Hugging Face without a crop": (HUGGING | {"crop_pct": None}, {"resize": ("--resize",)}),
    "Hugging Face with another step": (HUGGING | {"do_pad": True, "do_convert_rgb": True}, {"resize": ("(do_pad)",)}),
    "Hugging Face's longest side": (HUGGING | {"size": 40, "max_size": 60}, {"resize": ("(max_size)",)}),
    "Hugging Face's longest side alone": (
        HUGGING | {"size": {"longest_edge": 40}, "crop_pct": None},
        {"resize": ("--resize",)},
    ),
    "the nearest pixel": (
        {"val": [transforms.Resize(48, transforms.InterpolationMode.NEAREST), transforms.CenterCrop(40)]},
        {"interpolation": ("nearest", "--interpolation")},
    ),
    "Pillow's nearest": (HUGGING | {"resample": 0}, {"interpolation": ("'nearest'",)}),
    "OpenCV's and Pillow's numbers": (
        {"val": [AREA | {"interpolation": 4}], "p": HUGGING | {"resample": 1}},
        {"interpolation": ("'4'",)},
    ),
    "no means": ({"val": [*SCALED, transforms.ToTensor()]}, {"mean": ("--normalize",)}),
    "all at once": (
        {"transformVal": [*SCALED, transforms.RandomInvert(), transforms.Grayscale()], "test": [*SQUARE, CLAHE]},
        {"resize": (), "steps": ("Grayscale, CLAHE",)},
    ),
    "by chance": ({"t": [*SCALED, CLAHE, transforms.ColorJitter(1), transforms.RandomCrop(40)]}, {}),
    "with a probability": ({"val": [AREA, CLAHE | {"p": 0.5}]}, {}),
    "of a training": ({"train": [*SCALED, transforms.Grayscale()], "val": JUDGED}, {}),
    "of a word with that of a test": ({"latest": [*SCALED, transforms.Grayscale()], "val": JUDGED}, {}),
    "no steps": ({"val": [{"_target_": "Accuracy"}, {"_target_": "Loss"}], "t": {"a": JUDGED, "loss": CLAHE}}, {}),
    "a letterbox": ({"val": [LONGEST, PADDED]}, {}),
    "another border": ({"val": [LONGEST, PADDED | {"border_mode": 4}]}, {"steps": ("PadIfNeeded",)}),
    "nothing changed": (
        {"val": [*SCALED, transforms.Pad(0), transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float)]}
        | {
            "test_cfg": AS_LISTED.format("dict(type='ToRGB'), dict(type='EnsureChannelFirstd')").replace(
                "=40", "=(48, -1)"
            )
        },
        {},
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_steps_that_are_not_done_here_or_differ_are_asked_about(tmp_path: Path, state: State, name: str) -> None:
    content, asked = ASKED[name]
    beside = {} if "mean" in asked else {"norm_mean": HALF[0], "norm_std": HALF[1]}
    torch.save({"state_dict": state, "hyper_parameters": beside | content}, tmp_path / "x.pt")
    unsaid = resnet18.read(tmp_path / "x.pt").unsaid
    assert [*unsaid] == [*asked]
    assert all(word in unsaid[key] for key, words in asked.items() for word in words)


def test_steps_with_values_of_another_form_say_nothing(tmp_path: Path, state: State) -> None:
    for content in (
        {"cfg": "test_pipeline = [dict(type='Resize', scale=[(40, 40), (48, 48)])]"},
        {"val": [AREA | {"height": {}, "p": torch.ones(2)}], "act_layer": torch.ones(2)},
        {"do_resize": True, "size": [[40, 40]], "resample": [2], "mean": [10**400] * 3, "std": [0.5] * 3},
        {"do_resize": torch.ones(2)},
    ):
        torch.save({"state_dict": state, "hyper_parameters": content}, tmp_path / "x.pt")
        assert not resnet18.read(tmp_path / "x.pt").stated


def test_steps_that_are_not_done_here_need_force_and_the_rest_its_options() -> None:
    foreign = Foreign({}, ("ok", "bad"), input_size=32, unsaid={"resize": "edge?", "steps": "grey?; force?"})
    kind = kinds.resolve("resnet18")
    for force, said, open_ones in (
        (False, {}, "edge?; grey?; force?"),
        (True, {}, "edge?"),
        (False, {"resize": "stretch"}, "grey?; force?"),
    ):
        with pytest.raises(ConfigError, match=re.escape(f": {open_ones}") + "$"):
            agree(EXPERT, foreign, kind, Wishes(said, force=force))
    assert "against the file: grey?" in agree(EXPERT, foreign, kind, Wishes({"resize": "stretch"}, force=True)).remarks


def test_what_hugging_face_scales_and_shifts_counts() -> None:
    sight = stated_sight(
        {"do_resize": True, "size": {"height": 40, "width": 40}, "rescale_factor": 1 / 127.5, "rescale_offset": True}
        | {"image_mean": [0.3] * 3, "image_std": [0.7] * 3, "do_flip_channel_order": True}
    )  # MobileViT's, which never normalises
    seen = sight.fields
    assert (sight.size, seen["channels"]) == (40, "bgr")
    assert (seen["mean"], seen["std"]) == (pytest.approx((0.5,) * 3), pytest.approx((0.5,) * 3))


@pytest.mark.parametrize(
    ("text", "normalization", "is_told"),
    [
        ("mean: [0.5, 0.5, 0.5]\nstd: [0.25, 0.25, 0.25]\ncrop_pct: 0.8\nimg_size: 32\nlr: 0.1\n", HALF, True),
        (
            "mean: !!python/tuple [0.5, 0.5, 0.5]\nstd: !!python/tuple [0.25, 0.25, 0.25]\n"
            "act_layer: !!python/name:torch.nn.ReLU ''\nopt: !!python/object:no.Such {lr: 1}\n",
            HALF,
            True,
        ),
        ("- ok\n- bad\n", NORMALIZATIONS["imagenet"], True),
        ("mean: [0.5\n", NORMALIZATIONS["imagenet"], True),
        ("", NORMALIZATIONS["imagenet"], False),
    ],
)
def test_arguments_in_a_file_beside_the_weights_count_as_plain_data(
    tmp_path: Path, state: State, text: str, normalization: object, is_told: bool
) -> None:
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "args.yaml").write_text(text)
    read = resnet18.read(tmp_path / "model.safetensors")
    told = "".join((read.beside, *read.remarks))
    assert (read.preprocessing.normalization, "args.yaml" in told) == (normalization, is_told)
    assert read.labels is None


PADDLE = """
PreProcess:
  transform_ops:
  - ResizeImage: {resize_short: 72}
  - CropImage: {size: 64}
  - NormalizeImage: {mean: [0.5, 0.5, 0.5], order: '', scale: 0.00392156862745098, std: [0.5, 0.5, 0.5]}
  - ToCHWImage: null
PostProcess:
  Topk: {topk: 1, label_list: [ok, bad]}
"""


def test_the_steps_that_mmdeploy_writes_beside_a_model_count(tmp_path: Path, state: State) -> None:
    save_file(state, tmp_path / "end2end.safetensors")
    steps = [
        {"type": "Resize", "keep_ratio": False, "size": [64, 64]},
        {"type": "Normalize", "mean": [127.5] * 3, "std": [127.5] * 3, "to_rgb": True},
    ]
    (tmp_path / "pipeline.json").write_text(
        json.dumps({"pipeline": {"tasks": [{"type": "Task", "transforms": steps}]}})
    )
    read = resnet18.read(tmp_path / "end2end.safetensors")
    assert (read.input_size, read.preprocessing.resize) == (64, "stretch")
    assert read.preprocessing.normalization == NORMALIZATIONS["-1..1"]


def test_weights_that_are_given_as_a_network_of_onnx_say_so(tmp_path: Path, state: State) -> None:
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(StoreError, match="give the --kind of their network"):
        bring(tmp_path / "x.pt", replace(EXPERT, kind="onnx"), kinds.resolve("onnx"), Wishes(), tmp_path)


def test_what_paddle_writes_beside_a_model_counts(tmp_path: Path, state: State) -> None:
    save_file(state, tmp_path / "inference.safetensors")
    (tmp_path / "inference.yml").write_text(PADDLE)
    read = resnet18.read(tmp_path / "inference.safetensors")
    seen = read.preprocessing
    assert (read.labels, read.input_size, read.unsaid) == (("ok", "bad"), 64, {})
    assert (seen.resize, seen.shortest_edge, seen.normalization) == ("center-crop", 72, NORMALIZATIONS["-1..1"])
    for decoded, channels in (("{to_rgb: false}", "bgr"), ("{img_mode: BGR}", "bgr"), ("{to_rgb: true}", "rgb")):
        (tmp_path / "inference.yml").write_text(PADDLE.replace("ToCHWImage: null", f"DecodeImage: {decoded}"))
        known = resnet18.read(tmp_path / "inference.safetensors")
        assert (known.unsaid, known.preprocessing and known.preprocessing.channels) == ({}, channels)
    (tmp_path / "inference.yml").write_text(PADDLE.replace("ToCHWImage", "Sharpen"))
    assert "Sharpen" in resnet18.read(tmp_path / "inference.safetensors").unsaid["steps"]


@pytest.mark.parametrize("labels", ["ok,bad", '["ok", "bad"]', "{0: 'ok', 1: 'bad'}", '{"ok": 0, "bad": 1}'])
def test_what_the_metadata_of_safetensors_say_counts(tmp_path: Path, state: State, labels: str) -> None:
    said = {"classes": labels, "mean": "[0.5, 0.5, 0.5]", "std": "0.5,0.5,0.5", "format": "pt"}
    save_file(state, tmp_path / "x.safetensors", metadata=said)
    read = resnet18.read(tmp_path / "x.safetensors")
    assert (read.labels, read.preprocessing.normalization) == (("ok", "bad"), NORMALIZATIONS["-1..1"])
    assert yolov5n.read(tmp_path / "x.safetensors").labels == ("ok", "bad")


def test_hugging_faces_names_of_a_resnet_are_known(tmp_path: Path) -> None:
    expert = Expert("x", "resnet18", ("ok", "bad"), 32, "t/x")
    wanted = skeleton(resnet18, expert, optional=()).state_dict()
    theirs = {}
    for name, value in wanted.items():
        layer, leaf = name.rsplit(".", 1)
        stage, *inner = re.findall(r"\d+", layer) if layer.startswith("layer") else ["0"]
        place = f"resnet.encoder.stages.{int(stage) - 1}.layers.{inner[0] if inner else ''}"
        part = "convolution" if re.search(r"conv\d$|downsample\.0", layer) else "normalization"
        other = "classifier.1" if layer == "fc" else f"resnet.embedder.embedder.{part}"
        if "downsample" in layer:
            other = f"{place}.shortcut.{part}"
        elif inner:
            other = f"{place}.layer.{int(inner[1]) - 1}.{part}"
        theirs[f"{other}.{leaf}"] = value
    save_file(theirs, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "ok", "1": "bad"}, "hidden_act": "relu"}))
    read = resnet18.read(tmp_path / "model.safetensors")
    assert read.labels == ("ok", "bad")
    assert all(torch.equal(read.state[name], value) for name, value in wanted.items())


MEANS = ("mean", "std")


def test_two_normalisations_among_the_weights_are_not_passed_over(tmp_path: Path, state: State) -> None:
    several = {f"{name}.{of}": torch.full((3,), level) for name, level in (("a", 0.5), ("b", 0.4)) for of in MEANS}
    torch.save(under("model.", state) | several, tmp_path / "x.pt")
    assert several.keys() <= resnet18.read(tmp_path / "x.pt").state.keys()


def test_means_with_blue_first_are_those_of_a_network_that_takes_blue_first(tmp_path: Path, state: State) -> None:
    caffe = {"mean": [103.53, 116.28, 123.675], "std": [1.0, 1.0, 1.0], "to_rgb": False}
    torch.save({"state_dict": state, "data_preprocessor": caffe}, tmp_path / "x.pt")
    seen = resnet18.read(tmp_path / "x.pt").preprocessing
    assert seen.channels == "bgr"


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "keep_apart",
    [
        lambda layer: prune.random_unstructured(layer, "weight", 0.5),
        weight_norm,
        parametrizations.weight_norm,
        lambda layer: weight_norm(layer, dim=None),
        spectral_norm,
        parametrizations.spectral_norm,
    ],
)
@pytest.mark.parametrize("prefix", ["", "model._orig_mod."])
def test_weights_kept_apart_are_put_together(tmp_path: Path, keep_apart: Callable[[Any], object], prefix: str) -> None:
    module = network()
    layers = [one for one in module.modules() if isinstance(one, nn.Conv2d | nn.Linear)]
    for layer in layers:
        keep_apart(layer.eval())
        layer(torch.zeros(1, *layer.weight.shape[1:]))  # then its weights are those that it computes
    state = brought(tmp_path / "x.pt", under(prefix, dict(module.state_dict()))).state
    assert state is not None
    names = {one: name for name, one in module.named_modules()}
    for layer in layers:
        torch.testing.assert_close(state[f"{names[layer]}.weight"], layer.weight.detach())


def test_weights_that_are_computed_otherwise_say_the_way_out(tmp_path: Path) -> None:
    module = network()
    parametrizations.orthogonal(next(one for one in module.modules() if isinstance(one, nn.Conv2d | nn.Linear)))
    with pytest.raises(StoreError, match="remove_parametrizations"):
        brought(tmp_path / "x.pt", dict(module.state_dict()))


@pytest.mark.parametrize("to_rgb", [False, True])
def test_a_configuration_says_the_order_of_colours(tmp_path: Path, state: State, to_rgb: bool) -> None:
    text = openmmlab("127.5, 127.5, 127.5", "1.0, 1.0, 1.0", to_rgb)
    torch.save({"state_dict": state, "meta": {"cfg": text}}, tmp_path / "x.pt")
    seen = resnet18.read(tmp_path / "x.pt").preprocessing
    assert seen.channels == ("rgb" if to_rgb else "bgr")


def test_means_that_leave_open_what_counts_are_asked_about(tmp_path: Path, state: State) -> None:
    args = {"mean": [127.5] * 3, "std": [63.75] * 3}
    for content, asked in (
        ({"state_dict": state, "args": args, "data": {"mean": HALF[1], "std": HALF[0]}}, ["mean"]),
        ({"state_dict": state, "mean": HALF[0]}, ["mean"]),
        ({"state_dict": state, "hyper_parameters": {"pixel_mean": [127.5] * 3}}, ["mean"]),
        ({"state_dict": state, "args": {"mean": None, "std": None}}, []),
        ({"state_dict": state, "stats": {"mean": [0.9, 0.8, 0.7]}}, []),
    ):
        torch.save(content, tmp_path / "x.pt")
        assert [*resnet18.read(tmp_path / "x.pt").unsaid] == asked


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"img_size": 256, "input_size": 25088}, "img_size = 256,"),
        ({"args": {"image_size": [3, 64, 64], "resolution": 9.5}}, "image_size = [3, 64, 64],"),
        ({"img_size": 256, "val": JUDGED}, ""),
        ({"img_size": "large"}, ""),
    ],
)
def test_a_size_that_may_be_that_before_a_crop_is_told(
    tmp_path: Path, state: State, content: dict[str, Any], told: str
) -> None:
    torch.save({"state_dict": state, **content}, tmp_path / "x.pt")
    remarks = resnet18.read(tmp_path / "x.pt").remarks
    assert [told in one for one in remarks] == ([True] if told else [])


def test_labels_that_are_only_numbers_take_names(tmp_path: Path, state: State) -> None:
    took = brought(tmp_path / "x.pt", {"state_dict": state, "class_to_idx": {"0": 0, "1": 1}})
    assert took.expert.labels == ("ok", "bad")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # what users saved in its time still comes
def test_a_file_that_is_something_else_says_the_way_out(tmp_path: Path) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    scripted.save(str(tmp_path / "script.pt"))
    (tmp_path / "lfs.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (tmp_path / "page.pth").write_text("<!DOCTYPE html><html></html>")
    (tmp_path / "keras.pt").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    (tmp_path / "openvino.xml").write_text('<?xml version="1.0"?>\n<net name="Model0" version="11"><layers/></net>')
    (tmp_path / "lite.pt").write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    for name in ("frozen.pb", "x.onnx"):
        (tmp_path / name).write_bytes(b"\n\x12\n\5input" + bytes(100))
    np.savez(tmp_path / "arrays.npz", a=np.ones(3))
    for name, inside in (("packed.zip", "w/best.pt"), ("whole.keras", "config.json"), ("tm.zip", "labels.txt")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(inside, "x")
            archive.writestr("model.weights.h5", "x")
    for name, inside in (("packed.tar", ["w/best.pt"]), ("of2017.pth", ["sys_info", "pickle", "tensors", "storages"])):
        with tarfile.open(tmp_path / name, "w") as archive:
            for one in inside:
                archive.add(tmp_path / "lfs.pt", one)
    (tmp_path / "__0_0.distcp").write_bytes(b"PK\3\4")
    save_file({"a": torch.ones(1)}, tmp_path / "safe.pt")
    save_file({"a": torch.ones(1)}, tmp_path / "model-00001-of-00002.safetensors")
    for name, way in (
        ("model-00001-of-00002.safetensors", "one file"),
        ("__0_0.distcp", "dcp_to_torch"),
        ("script.pt", "ONNX"),
        ("lfs.pt", "git lfs pull"),
        ("page.pth", "download"),
        ("keras.pt", "ONNX"),
        ("safe.pt", ".safetensors"),
        ("lite.pt", "tf2onnx"),
        ("openvino.xml", "ONNX model"),
        ("frozen.pb", "torch.save"),
        ("x.onnx", "--kind onnx"),
        ("arrays.npz", "torch.save"),
        ("packed.zip", "unpack"),
        ("packed.tar", "unpack"),
        ("of2017.pth", "state_dict"),
        ("whole.keras", "Keras"),
        ("tm.zip", "ONNX"),
    ):
        with pytest.raises(CoeError) as refused:
            brought(tmp_path / name)
        assert way in str(refused.value)


@pytest.mark.filterwarnings("ignore:.*torch.quantize:UserWarning")
def test_a_quantised_network_says_so(tmp_path: Path) -> None:
    packed = (torch.quantize_per_tensor(torch.ones(2, 2), 1, 0, torch.qint8), torch.ones(2))
    torch.save({"model": {"fc.scale": torch.ones(()), "fc._packed_params._packed_params": packed}}, tmp_path / "x.pt")
    with pytest.raises(StoreError, match="quantised"):
        read_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("names", "command"),
    [
        (("models.yolo.DetectionModel", "models.common.C3"), "export.py"),
        (("yolov5.models.yolo.Model",), "export.py"),
        (("ultralytics.nn.tasks.DetectionModel", "ultralytics.nn.modules.block.C2f"), "yolo export model="),
        (("ultralytics.nn.tasks.SegmentationModel",), "yolo export model="),
    ],
)
def test_networks_of_other_yolos_name_the_command(tmp_path: Path, names: tuple[str, ...], command: str) -> None:
    torch.save({"model": [_Named(name) for name in names]}, tmp_path / "x.pt", pickle_module=_Pickle)
    with pytest.raises(StoreError, match=command):
        read_checkpoint(tmp_path / "x.pt")


class _Named:
    """An object that a pickle shall name as one of a class that is not installed."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Pickle:
    """A pickler that writes the names of `_Named` objects."""

    import pickle as _pickle

    class Pickler(_pickle._Pickler):
        def save(self, value: Any, save_persistent_id: bool = True) -> None:
            if isinstance(value, _Named):
                module, _, name = value.name.rpartition(".")
                self.write(f"c{module}\n{name}\n".encode() + b")\x81")
                return
            super().save(value, save_persistent_id)

    dumps, loads = _pickle.dumps, _pickle.loads


@pytest.mark.parametrize("where", ["arch", "model"])
def test_a_network_with_the_same_tensors_that_computes_something_else_is_refused(
    tmp_path: Path, state: State, where: str
) -> None:
    def saved(name: str) -> dict[str, object]:
        said = {"arch": name} if where == "arch" else {"arch": "resnet", "args": argparse.Namespace(model=name)}
        return {"state_dict": state, **said}

    for name in ("resnetblur50", "resnetaa50.d_in1k"):
        with pytest.raises(StoreError, match="ONNX"):
            brought(tmp_path / "x.pth", saved(name))
    for name in ("resnet50.a1_in1k", "my_resnet"):
        assert brought(tmp_path / "x.pth", saved(name)).state is not None


@pytest.mark.parametrize(
    ("said", "is_other"),
    [
        ({"args": argparse.Namespace(gp="max")}, True),
        ({"args": argparse.Namespace(model_kwargs={"act_layer": "silu"})}, True),
        ({"hyper_parameters": {"model_name": "resnetblur50"}}, True),
        ({"meta": {"cfg": "model = dict(backbone=dict(depth=50, style='caffe'))"}}, True),
        ({"meta": {"cfg": "model = dict(head=dict(type='MultiLabelLinearClsHead'))"}}, True),
        ({"args": argparse.Namespace(gp=None, model_kwargs={"drop_path_rate": 0.1, "act_layer": "relu"})}, False),
        ({"args": {"act_layer": "None", "model_kwargs": {"act_layer": "torch.nn.ReLU"}}}, False),
        ({"args": {"act_layer": "<class 'torch.nn.modules.activation.ReLU'>"}}, False),
        ({"hyper_parameters": {"act_layer": "nn.ReLU(inplace=True)"}}, False),
        ({"args": {"replace_stride_with_dilation": (False, False, False), "aa_layer": ""}}, False),
        ({"hyper_parameters": {"global_pool": "avg", "teacher": "resnetaa101", "output_stride": 32}}, False),
        ({"meta": {"cfg": "model = dict(backbone=dict(depth=50, style='pytorch'))"}}, False),
    ],
)
def test_settings_of_a_network_that_computes_something_else(
    tmp_path: Path, state: State, said: dict[str, Any], is_other: bool
) -> None:
    torch.save({"state_dict": state, **said}, tmp_path / "x.pt")
    if not is_other:
        resnet18.read(tmp_path / "x.pt")
        return
    with pytest.raises(StoreError, match="something else"):
        resnet18.read(tmp_path / "x.pt")


def test_each_kind_knows_its_own_activation(tmp_path: Path) -> None:
    tensors = efficientnet_lite0.skeleton(EXPERT).state_dict()
    other = pytest.raises(StoreError, match="act_layer = silu")
    for activation, expected in (("ReLU6", nullcontext()), ("silu", other)):
        torch.save({"state_dict": tensors, "args": {"act_layer": activation}}, tmp_path / "x.pt")
        with expected:
            efficientnet_lite0.read(tmp_path / "x.pt")


def test_a_whole_network_of_another_library_says_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = types.ModuleType("timm.models.resnet")
    timm.ResNet = type("ResNet", (nn.Linear,), {"__module__": timm.__name__})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, timm.__name__, timm)
        patch.setitem(sys.modules, "timm.models", timm)
        patch.setitem(sys.modules, "timm", timm)
        torch.save(timm.ResNet(2, 2), tmp_path / "x.pt")
    with pytest.raises(StoreError, match=r"timm.*state_dict"):
        read_checkpoint(tmp_path / "x.pt")


def test_a_network_of_another_kind_names_the_kind_that_it_fits(tmp_path: Path, state: State) -> None:
    path = tmp_path / "x.pt"
    torch.save(state, path)
    with pytest.raises(StoreError, match=r"--kind narrow$"):
        bring(path, replace(EXPERT, kind="resnet18"), kinds.resolve("resnet18"), Wishes(), path.parent)


def test_a_wrong_number_of_labels_names_the_file_and_looks_for_no_other_kind(
    tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(kinds, "names", lambda: ["resnet18"])
    monkeypatch.setattr(kinds, "resolve", lambda name, *_, known=kinds.resolve: (tried.append(name), known(name))[1])
    wide = {name: value.repeat(2, *[1] * (value.dim() - 1)) for name, value in state.items() if name.startswith("fc.")}
    with pytest.raises(StoreError, match=r"x\.pt"):
        brought(tmp_path / "x.pt", state | wide)
    assert tried == ["narrow"]
