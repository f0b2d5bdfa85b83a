"""What known programs record of the models that they save: one function for each, plain data in, a `Record` out.

What a program does not record, or records of pictures in a way that is not done here, is asked for. Nothing is imported
from these programs.
"""

from __future__ import annotations

import ast
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from coe.errors import StoreError, list_few, readable
from coe.helpers import regular
from coe.helpers.preprocessing import NORMALIZATIONS, Layout, Outputs, Preprocessing

_MOST_BYTES = 1 << 20
_DEEPEST = 8
_NOTHING = Outputs()
_LARGEST = 1 << 16
"""No side of a picture has more pixels."""
LETTERBOX = Preprocessing(interpolation="bilinear")
"""What ultralytics' detectors and those of the YOLOv5 repository are trained on."""
_CENTRE = Preprocessing(resize="center-crop", interpolation="bilinear-antialias")
"""What ultralytics' classifiers are trained on."""
_MEAN, _DEVIATION = NORMALIZATIONS["imagenet"]
_WEIGHTS = re.compile(r"(pytorch_)?(.+?)(_(quantized|optimized|simplified|fp16|u?int8|q4\w*))?\.", re.IGNORECASE)
_ENDINGS = (".safetensors", ".pth.tar", ".pth", ".pt", ".ckpt", ".onnx", ".bin")
_ANTIALIASED = {"bilinear": "bilinear-antialias", "bicubic": "bicubic-antialias"}
_OF_PILLOW = {2: "bilinear-antialias", 3: "bicubic-antialias"}
_CROPS = {"center": "center-crop", "squash": "stretch"}
"""timm's words for `Preprocessing.resize`."""
_OF_OPENVINO = {"standard": "stretch", "crop": "center-crop", "fit_to_window_letterbox": "letterbox"}
_OTHER_STEPS = re.compile(
    r"do_(?!(resize|rescale|normalize|center_crop|convert_rgb|reduce_labels|convert_annotations)$)\w+|rescale_offset"
    r"|include_top|crop_to_patches|resize_short|max_patches|max_size|tile_size"
)
"""Keys of Hugging Face's steps that nothing here does, such as padding to a square."""
_SETTINGS = (
    "downsample_in_bottleneck",
    "downsample_in_first_stage",
    "aa_layer",
    "output_stride",
    "replace_stride_with_dilation",
)
_USUAL = re.compile(r"None|False|32|[\[(]False, False, False[\])]|", re.IGNORECASE)
_OTHERWISE = {("style", "caffe"), ("problem_type", "multi_label_classification")}
_SAME_TENSORS = re.compile(r"\w*resnet(aa|blur)\d+\w*|efficientnet_lite\d\w*|MultiLabel\w*Head")
"""timm's networks that blur between their layers without a tensor of their own, or pad otherwise than those with `tf_`
before their name, and OpenMMLab's heads of sigmoids."""
_LABELS = ("classes", "class_names", "class_to_idx", "idx_to_class", "id2label", "label2id", "names", "labels")
"""What trainings call the labels beside weights, or among their `hyper_parameters`."""
_NO_WEIGHTS = re.compile(r"(optimizer|scheduler|scaler|rng_state\w*|training_args)\.")
"""What Hugging Face's trainer saves beside weights."""
_CLASS = re.compile(r"(\w+)\W*(\(.*)?$")
"""The name of a class at the end of a text, such as `torch.nn.ReLU`, `ReLU(inplace=True)` or `<class '...ReLU'>`."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a program recorded: labels in the order of the outputs, input size in pixels, fields of `Preprocessing`.

    `unsaid` says of fields why what is recorded is not done here. `outputs` is what is said of the outputs, `layouts`
    those that the program's detectors may have (() for any), and `gives_logits` whether its classifiers do, unless
    their scores are probabilities.
    """

    labels: tuple[str, ...] | None = None
    input_size: int | None = None
    seen: Mapping[str, Any] = field(default_factory=dict)
    unsaid: Mapping[str, str] = field(default_factory=dict)
    outputs: Outputs = _NOTHING
    layouts: tuple[Layout, ...] = ()
    gives_logits: bool = False

    def beside(self, other: Record) -> Record:
        """Return this record with what only another one says of labels and pictures."""
        return replace(
            self,
            labels=self.labels or other.labels,
            input_size=self.input_size or other.input_size,
            seen={**other.seen, **self.seen},
            unsaid={name: why for name, why in {**other.unsaid, **self.unsaid}.items() if name not in self.seen},
            gives_logits=self.gives_logits or other.gives_logits,
        )


# Where records lie: in a checkpoint, in the metadata of an ONNX model, in files beside it


def of_checkpoint(content: Mapping[Any, Any]) -> Record:
    """Return what training scripts of torchvision and timm, and OpenMMLab's programs, keep beside weights."""
    arguments, meta = content.get("args"), content.get("meta")
    levels = [level for level in (content, content.get("hyper_parameters")) if isinstance(level, dict)]
    found = Record(next(filter(None, (labels_of(level.get(name)) for level in levels for name in _LABELS)), None))
    if isinstance(arguments, dict):
        found = found.beside(torchvision(arguments) if "val_crop_size" in arguments else timm(arguments))
    if isinstance(meta, dict):
        dataset = meta.get("dataset_meta")
        classes = meta.get("CLASSES") or (dataset.get("classes") if isinstance(dataset, dict) else None)
        found = found.beside(openmmlab(configuration(meta.get("cfg")))).beside(Record(labels_of(classes)))
    return found


def of_files(path: Path) -> tuple[Record, dict[str, Any], tuple[str, ...]]:
    """Return what the records beside a file of weights say, their content by name, and a sentence for each that counts.

    Raises StoreError for a record that cannot be read.
    """
    found, contents = Record(), dict[str, Any]()
    if others := _around(path)[1]:
        names = list_few(dict.fromkeys(file.name for file in others))
        return found, contents, (f"did not use {names}: other weights lie beside, which it may belong to",)
    for file in files_beside(path):
        try:
            text = regular.read(file, _MOST_BYTES).decode("utf-8-sig")
            content = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise StoreError(f"{file}: cannot be read ({type(error).__name__}); correct it, or move it away") from error
        if isinstance(content, dict):
            contents[file.name] = content
            found = found.beside(_OF_FILES[file.name](content))
    says = found != Record(gives_logits=found.gives_logits)
    return found, contents, (f"used the record {', '.join(contents)} beside it",) if says else ()


def files_beside(path: Path) -> list[Path]:
    """Return the records beside a file of weights; none where they may belong to another one.

    They count beside the only file of weights in its folder, or where all of these are forms of one, such as
    `model.safetensors` and `model_fp16.onnx`.
    """
    return _around(path)[0]


def _around(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the records around a file of weights: its own, and those that may belong to other weights."""
    # Hugging Face keeps ONNX in a folder of that name, beside what it says of the model.
    folders = [path.parent, *([path.parent.parent] if path.parent.name == "onnx" else [])]
    try:
        files = [folder / name for folder in folders for name in sorted(regular.names(folder))]
    except OSError:
        return [], []
    weights = [file.name for file in files if file.name.lower().endswith(_ENDINGS) and not _NO_WEIGHTS.match(file.name)]
    records = [file for file in files if file.name in _OF_FILES]
    are_its = len({form[2] for form in map(_WEIGHTS.match, weights) if form}) <= 1
    return (records, []) if are_its else ([], records)


def copied(path: Path, folder: Path) -> None:
    """Copy the records beside a file into another folder, for a copy of that file; raises StoreError."""
    with readable(f"{path}: the records beside it", StoreError):
        for file in files_beside(path):
            shutil.copyfile(file, folder / file.name)


# What each program writes


def ultralytics(metadata: Mapping[str, str], where: str, *, is_classifier: bool) -> Record:
    """Read the metadata that ultralytics' exporter, or that of the YOLOv5 repository, writes; `where` begins sentences.

    Other programs write the same words of other networks, but no `stride`: only labels are read of theirs. Raises
    StoreError for a task that no kind has.
    """
    if "stride" not in metadata:
        return Record(labels_of(_literal(metadata.get("names", "None"))))
    task = metadata.get("task", "")
    if task not in ("", "detect", "classify"):
        raise StoreError(f"{where}: its task is '{task[:40]}'; models that detect or classify can be imported")
    said = {key: _literal(metadata.get(key, "None")) for key in ("names", "imgsz", "args")}
    labels, size = labels_of(said["names"], 1), longer_side(said["imgsz"])
    is_repository = not task and labels is not None
    layout: Layout | None = None
    if task == "detect" and {"end2end", "nms", "args"} & metadata.keys():
        with_nms = isinstance(said["args"], Mapping) and said["args"].get("nms") is True
        layout = "end2end" if with_nms or "True" in (metadata.get("end2end"), metadata.get("nms")) else "yolov8"
    classifier = _CENTRE if task == "classify" else None
    detector = LETTERBOX if task == "detect" or is_repository else None
    return Record(
        labels,
        size,
        dict((classifier if is_classifier else detector) or {}),
        outputs=Outputs(layout=layout, activation="none" if task == "classify" else None),
        layouts=("yolov8", "end2end") if task == "detect" else ("yolov5",) if is_repository else (),
        gives_logits=labels is not None,
    )


def torchvision(arguments: Mapping[str, Any]) -> Record:
    """Read the arguments of torchvision's training script, which evaluates with ImageNet's normalisation."""
    size, edge = _side(arguments.get("val_crop_size")), _side(arguments.get("val_resize_size"))
    if not size or not edge:
        return Record()
    seen, unsaid = _interpolated(arguments)
    seen |= {"resize": "center-crop", "shortest_edge": max(size, edge), "channels": "rgb"}
    return Record(None, size, seen | {"mean": _MEAN, "std": _DEVIATION}, unsaid)


def timm(settings: Mapping[str, Any]) -> Record:
    """Read timm's `pretrained_cfg`, or the arguments of its training script, of which some may be None."""
    shape, share = settings.get("input_size"), settings.get("crop_pct")
    if "crop_pct" not in settings:
        return Record()
    seen, unsaid = _interpolated(settings)
    if (pair := _pair(settings.get("mean"), settings.get("std"))) is not None:
        seen |= {"mean": pair[0], "std": pair[1], "channels": "rgb"}
    size = _side(settings.get("img_size") or (list(shape[-2:]) if isinstance(shape, list | tuple) else None))
    mode = str(settings.get("crop_mode") or "center")
    how = _CROPS.get(mode)
    if size and how and isinstance(share, int | float) and 0 < share <= 1:
        seen |= {"resize": how, "shortest_edge": math.floor(size / share)}
    elif shape is not None or size:
        unsaid["resize"] = f"crop_mode = {mode:.20} and crop_pct = {share} of {shape or size} pixels are not supported"
    return Record(None, size, seen, unsaid)


def hugging_face(processor: Mapping[str, Any]) -> Record:
    """Read a preprocessor_config.json of Hugging Face's programs."""
    others = [str(key) for key, value in processor.items() if value and _OTHER_STEPS.fullmatch(str(key))]
    if others:
        return Record(unsaid=dict.fromkeys(("resize", "mean"), f"{', '.join(others)} are not supported"))
    pair = _pair(processor.get("image_mean"), processor.get("image_std"))
    scale = processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1.0
    pair = pair if processor.get("do_normalize", True) else _pair(0.0, 1.0)
    seen: dict[str, Any] = {}
    if pair is not None and type(scale) in (int, float) and 0 < scale <= 1:
        seen = {"mean": _over(pair[0], 255 * scale), "std": _over(pair[1], 255 * scale), "channels": "rgb"}
    if not processor.get("do_resize"):
        return Record(None, None, seen)
    seen["rounds_down"] = True
    unsaid: dict[str, str] = {}
    if type(resample := processor.get("resample")) is int and resample in _OF_PILLOW:
        seen["interpolation"] = _OF_PILLOW[resample]
    elif resample is not None:
        unsaid["interpolation"] = f"resample = {resample!s:.20} is not supported"
    size, crop = processor.get("size"), processor.get("crop_size")
    sides = size if isinstance(size, dict) else {}  # what one number says, each of its programs knows
    short = _side(sides.get("shortest_edge"))
    edge = short or _side([sides.get("height"), sides.get("width")])
    how = "center-crop" if short else "stretch"
    cut = _side([*crop.values()] if isinstance(crop, dict) else crop) if processor.get("do_center_crop") else None
    side = cut or (edge if how == "stretch" else None)
    if not edge or not side or edge < side or processor.get("crop_pct"):  # that of ConvNeXt
        why = "do_resize and do_center_crop make no squares of one size, or are not supported"
        return Record(None, None, seen, {**unsaid, "resize": why})
    shorter = edge if edge != side or how == "center-crop" else None
    return Record(None, side, {**seen, "resize": how, "shortest_edge": shorter}, unsaid)


def openvino(metadata: Mapping[str, str]) -> Record:
    """Read OpenVINO's `model_info` in the metadata of an ONNX model: means and scales of pixels from 0 to 255."""
    info = {key.removeprefix("model_info "): text for key, text in metadata.items() if key.startswith("model_info ")}
    seen: dict[str, Any] = {}
    if "mean_values" in info or "scale_values" in info:
        mean, std = (re.findall(r"[^,\s]+", info.get(key, "")) for key in ("mean_values", "scale_values"))
        pair = _pair(mean or [0.0] * 3, std or [1.0] * 3)
        seen |= {} if pair is None else {"mean": _over(pair[0], 255), "std": _over(pair[1], 255)}
    if (resize := _OF_OPENVINO.get(info.get("resize_type", ""))) is not None:
        seen["resize"] = resize
    if (pad := info.get("pad_value", "")).isdecimal() and int(pad) < 256:
        seen["pad"] = (int(pad),) * 3
    reverse = info.get("reverse_input_channels")
    unsaid = {"channels": f"reverse_input_channels = {reverse:.20} is written of RGB and of BGR"} if reverse else {}
    return Record(labels_of(info.get("labels", "").split()), None, seen, unsaid)


def openmmlab(settings: Any) -> Record:
    """Read colours of a configuration of OpenMMLab's programs; how they bring pictures to size is asked for."""
    norm = settings.get("data_preprocessor") or settings.get("img_norm_cfg") if isinstance(settings, dict) else None
    pair = _pair(norm.get("mean"), norm.get("std")) if isinstance(norm, dict) else None
    if pair is None:
        return Record()
    turned = norm.get("to_rgb", norm.get("bgr_to_rgb"))
    channels = {"channels": "rgb" if turned else "bgr"} if isinstance(turned, bool) else {}
    return Record(None, None, {"mean": _over(pair[0], 255), "std": _over(pair[1], 255), **channels})


def _config(content: Mapping[str, Any]) -> Record:
    """Read a config.json of Hugging Face's programs, or of timm."""
    own = content.get("pretrained_cfg")
    labels = next(filter(None, (labels_of(content.get(name)) for name in ("label_names", *_LABELS))), None)
    return (timm(own) if isinstance(own, dict) else Record()).beside(Record(labels, gives_logits=True))


_OF_FILES = {"config.json": _config, "preprocessor_config.json": hugging_face, "args.yaml": timm}
"""What Hugging Face's programs and timm write beside a model, and who reads it."""


# Networks with the tensors of another


def another_network(content: Any) -> dict[str, str]:
    """Return the settings of a record, by name, with which a ResNet's tensors may be those of another network.

    Activations are among them, in small letters: each kind knows its own.
    """
    found: dict[str, str] = {}
    for name, value in _entries(content):
        if name in ("act_layer", "hidden_act") and isinstance(value, str) and not _USUAL.fullmatch(value):
            found[name] = named[1].lower() if (named := _CLASS.search(value)) else value
        elif (
            (isinstance(value, str) and (_SAME_TENSORS.match(value) or (name, value) in _OTHERWISE))
            or (name in _SETTINGS and not _USUAL.fullmatch(str(value)))
            or (name in ("gp", "global_pool") and "max" in str(value))
        ):
            found[name] = f"{value!s:.60}"
    return found


def _entries(content: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested dicts; a dict may also hold itself."""
    if isinstance(content, dict) and depth < _DEEPEST:
        for key, value in content.items():
            if "teacher" in str(key):
                continue
            yield str(key), value
            yield from _entries(configuration(value) if key == "cfg" else value, depth + 1)


def configuration(text: Any) -> Any:
    """Return the plain values of a text in Python's words, as OpenMMLab's programs keep their settings, by name."""
    if not isinstance(text, str):
        return text
    try:
        return {
            line.targets[0].id: _plain_value(line.value)
            for line in ast.parse(text).body
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _plain_value(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id="dict")):
            return {one.arg: _plain_value(one.value) for one in node.keywords}
        case ast.List() | ast.Tuple():
            return [_plain_value(one) for one in node.elts]
    return _literal(node)


def _literal(text: str | ast.expr) -> Any:
    """Return a plain value in Python's words; None for anything else."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


# Labels, colours and sizes in the forms that programs write


def labels_of(names: Any, least: int = 2) -> tuple[str, ...] | None:
    """Return `least` labels or more from a list or a mapping from or to their numbers; None for others, as LABEL_0."""
    names = _in_order(names)
    if names is None or len({*map(str, names)}) < max(len(names), least):
        return None
    is_unnamed = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    return None if is_unnamed or not all(isinstance(one, str) and one for one in names) else tuple(names)


def _in_order(names: Any) -> list[Any] | None:
    """Return the names of a list, or of a mapping from or to the numbers 0, 1, 2 and so on, as numbers or texts."""
    if not isinstance(names, dict):
        return list(names) if isinstance(names, list | tuple) else None
    if all(type(number) is int for number in names.values()):
        names = {number: name for name, number in names.items()}
    numbered = {int(key): name for key, name in names.items() if re.fullmatch(r"\d{1,6}", str(key))}
    is_whole = len(numbered) == len(names) and sorted(numbered) == list(range(len(names)))
    return [numbered[number] for number in range(len(names))] if is_whole else None


def longer_side(sides: Any) -> int | None:
    """Return the longer side of an input, from a number or [height, width]; None for anything else."""
    both = sides if isinstance(sides, list | tuple) else [sides]
    return max(both) if both and all(type(side) is int and 0 < side <= _LARGEST for side in both) else None


def _interpolated(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    method = settings.get("interpolation")
    if not isinstance(method, str) or not method.isalpha():
        return {}, {}
    if method in _ANTIALIASED:
        return {"interpolation": _ANTIALIASED[method]}, {}
    return {}, {"interpolation": f"'{method:.20}' is not supported"}


def _pair(mean: Any, std: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return a mean and a deviation of three channels each, from three numbers or from one; None for anything else."""
    both = [list(one) if isinstance(one, list | tuple) else [one] for one in (mean, std)]
    if any(isinstance(value, bool) for one in both for value in one):
        return None
    try:
        numbers = [[float(value) for value in one] * (3 if len(one) == 1 else 1) for one in both]
    except (TypeError, ValueError, OverflowError):
        return None
    if any(len(one) != 3 or not all(map(math.isfinite, one)) for one in numbers) or min(numbers[1]) <= 0:
        return None
    return tuple(numbers[0]), tuple(numbers[1])


def _over(values: Sequence[float], scale: float) -> tuple[float, ...]:
    return tuple(one / scale for one in values)


def _side(size: Any) -> int | None:
    """Return the side of a square, from a number or from equal ones; None for anything else."""
    sides = size if isinstance(size, list | tuple) else [size]
    is_square = bool(sides) and all(type(side) is int and 0 < side == sides[0] <= _LARGEST for side in sides)
    return sides[0] if is_square else None
