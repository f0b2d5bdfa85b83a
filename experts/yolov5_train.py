"""Training of the YOLOv5 kinds through ultralytics' trainer, without its code that reads or writes elsewhere.

We read the data set's YAML, because ultralytics' reader follows a `download:` entry, which may be an address or a shell
command. Weights are kept in memory and as safetensors; no pickle is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from coe.core import Expert
from coe.errors import ConfigError
from coe.helpers.rates import Rate
from coe.pictures.array_images import DecodedImage, ordered
from coe.pictures.decoding import decode
from coe.pictures.exif import seen_size
from coe.pictures.photographs import Purpose, by_purpose
from coe.runtime.processor import trainer_threads
from coe.store.kinds import Progress, Trained, TrainingPlan
from coe.store.manifest import SMALLEST
from experts import quiet_ultralytics, yolo_images, yolo_labels
from experts.classifier_train import pace
from experts.proof import unproven_objects
from experts.records import LETTERBOX
from experts.taken import TakenPictures
from experts.trainers import load_matching, uses_bf16


def train(expert: Expert, plan: TrainingPlan, progress: Progress, settings: Mapping[str, Any]) -> Trained:
    """Train `expert` on the YOLO data set `plan.data` (a YAML file) and return the epoch of the best mAP50.

    That is of the part to choose by; without it, as with few images, the last epoch. The figures are of a third part.

    `settings` are ultralytics' training arguments, which override ours, except `amp`: `plan.bf16` says it. The best
    weights so far are also in `plan.work/best.safetensors`, so that an interrupted training is not lost. Raises
    ConfigError if the data set or its labels do not fit.
    """
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': layers of a detector cannot be frozen; plan it without 'freeze'")
    if "amp" in settings:
        raise ConfigError(f"expert '{expert.id}': 'amp' is no setting here; plan it with 'bf16'")
    quiet_ultralytics.prepare(plan.work / "ultralytics")
    data, taken = read_data_set(plan, expert)
    trainer_class = _trainer_class(plan.bits)
    checked = yolo_labels.check(taken.pictures, len(expert.labels), plan.data)
    trainer = trainer_class(expert, plan, data, progress, settings)
    trainer.train()
    if trainer.kept is None:
        raise ConfigError(f"training '{expert.id}' kept no epoch; is '{plan.data}' empty?")
    remarks = (*checked.remarks, *taken.identical())
    return Trained(
        trainer.kept,
        expert.labels,
        trainer.kept_metrics | {SMALLEST: checked.smallest * expert.input_size},
        remarks,
        taken.sentence(),
        learned=taken.learned,
        unproven=unproven_objects(trainer.found, trainer.objects),
        preprocessing=LETTERBOX,
    )


def read_data_set(plan: TrainingPlan, expert: Expert) -> tuple[dict[str, Any], TakenPictures]:
    """Read the YAML of a data set into the dict that the trainer needs, and tell what is taken; see `yolo_images`.

    Raises ConfigError also if an image is not whole.
    """
    images = yolo_images.read(expert, plan)
    taken, by = yolo_images.prove(images, plan), by_purpose(images)
    plan.work.mkdir(parents=True, exist_ok=True)
    lists = {}
    chosen_by = by[Purpose.VERIFY] or by[Purpose.TEST]
    for split, rows in (("train", by[Purpose.LEARN]), ("val", chosen_by), ("test", by[Purpose.TEST])):
        lists[split] = plan.work / f"{split}.txt"
        lists[split].write_text("".join(f"{one.path}\n" for one in rows), encoding="utf-8")
    described = {
        "path": taken.root,
        "train": str(lists["train"]),
        "val": str(lists["val"]),
        "test": str(lists["test"]),
        "chooses": bool(by[Purpose.VERIFY]),
        "nc": len(expert.labels),
        "names": dict(enumerate(expert.labels)),
        "channels": 3,
        "yaml_file": str(plan.data),
    }
    return described, taken


def _overrides(expert: Expert, plan: TrainingPlan, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": f"{expert.kind}.yaml",
        "data": str(plan.data),
        "epochs": plan.epochs,
        "batch": plan.batch,
        "imgsz": expert.input_size,
        "lr0": plan.learning_rate,
        "seed": plan.seed,
        "project": str(plan.work.resolve()),
        "name": "run",
        "exist_ok": True,
        "device": "cuda:0" if torch.cuda.is_available() else "cpu",
        "optimizer": "AdamW",
        "momentum": 0.9,
        "nbs": plan.batch,  # one step per batch: else ultralytics would gather gradients of up to 64 images
        "warmup_epochs": 0.0,  # `_set_pace` warms up
        "pretrained": False,
        "patience": plan.epochs,
        "amp": "bf16" if plan.bf16 and torch.cuda.is_available() else False,  # `True` downloads weights for a check
        "plots": False,
        "verbose": False,
        "workers": 0,
        "cache": "ram",
        "mosaic": 0.0,
        "close_mosaic": 0,
        "erasing": 0.0,
        "flipud": 0.0,
        "fliplr": 0.0,
        **settings,
    }


def _not_remembered(path: Path) -> Any:
    raise FileNotFoundError(path)


def _not_kept(prefix: str, path: Path, cache: dict[str, Any], version: str) -> None:
    cache["version"] = version


def _size_of(image: str) -> tuple[str, tuple[int, int]]:
    """Return no message, and the height and width of an image as it is shown; `yolo_images` proved it."""
    seen = seen_size(Path(image))
    return "", (seen.height, seen.width)


def _as_judged(image: str, flags: int = 0, *, bits: int | None) -> DecodedImage:
    """Return an image, BGR, as it will be judged: OpenCV drops alpha, and keeps the high bytes of 12 bits in 16."""
    return ordered(decode(image, bits=bits), "BGR")


def _trainer_class(bits: int | None) -> Callable[..., Any]:
    """Make the trainer's class; in a function, because ultralytics may be imported only after `prepare`."""
    from ultralytics.data import base, dataset, utils
    from ultralytics.models.yolo.detect import DetectionTrainer

    # ultralytics caches a data set as a pickle beside the labels: these replacements neither open nor write it.
    dataset.load_dataset_cache_file = _not_remembered
    dataset.save_dataset_cache_file = _not_kept
    dataset.img2label_paths = lambda images: [str(yolo_images.labels_of(Path(image))) for image in images]
    # It would write a JPEG with bytes behind its end anew, over the user's file.
    utils.check_image = _size_of
    base.imread = partial(_as_judged, bits=bits)
    # It would learn from arrays beside the images, and remove or write anew those that it cannot read.
    nowhere = Path(os.devnull) / "none.npy"
    base.BaseDataset.npy_files = property(lambda dataset: [nowhere] * len(dataset.im_files), lambda _, files: None)

    class QuietTrainer(DetectionTrainer):
        def __init__(
            self,
            expert: Expert,
            plan: TrainingPlan,
            data: dict[str, Any],
            progress: Progress,
            settings: Mapping[str, Any],
        ) -> None:
            self.plan = plan
            self.ready_data = data
            self.progress = progress
            self.kept: dict[str, torch.Tensor] | None = None
            self.kept_metrics: dict[str, float] = {}
            self.steps = self.found = self.objects = 0
            super().__init__(overrides=_overrides(expert, plan, settings))
            torch.set_num_threads(trainer_threads(plan.threads))  # ultralytics leaves one core unused

        def get_dataset(self) -> dict[str, Any]:
            return self.ready_data

        def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> Any:
            model = super().get_model(cfg, None, verbose=False)
            if self.plan.init is not None:
                load_matching(model, self.plan.init)
            return model.to(memory_format=torch.channels_last)  # a quarter faster on a CPU too

        def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            batch = super().preprocess_batch(batch)
            batch["img"] = batch["img"].contiguous(memory_format=torch.channels_last)
            return batch

        def run_callbacks(self, event: str) -> None:
            """Run only our callbacks, because others report to services."""
            if event == "on_train_start" and self.device.type == "cpu":
                self.amp = uses_bf16(self.plan, self.device)  # ultralytics' setting refuses bf16 on a CPU
            if event == "on_train_batch_start":
                self._set_pace()
            if event == "on_fit_epoch_end":
                losses: dict[str, float] = (
                    {} if self.tloss is None else {key: float(value) for key, value in self.tloss.items()}
                )
                self.progress(self.epoch + 1, self.epochs, {**losses, **self._measures()})

        def save_model(self) -> bool:
            if not self.data["chooses"] or self.best_fitness is None or self.fitness == self.best_fitness:
                state = self.ema.ema.state_dict()
                # Counters stay whole numbers, because the skeleton's tensors are also matched by type.
                self.kept = {
                    name: (value.float() if value.is_floating_point() else value).detach().cpu().contiguous().clone()
                    for name, value in state.items()
                }
                save_file(self.kept, self.plan.work / "best.safetensors")
            return True

        def final_eval(self) -> None:
            """Measure the epoch that is kept by images that did not choose it."""
            if self.kept is None:
                return
            self.ema.ema.load_state_dict(self.kept)
            self.validator.dataloader = self.get_dataloader(self.data["test"], self.batch_size, rank=-1, mode="val")
            self.metrics = self.validator(self)
            self.objects = sum(len(label["cls"]) for label in self.validator.dataloader.dataset.labels)
            measures = self._measures()
            self.found = round(measures["recall"] * self.objects)
            if self.objects:
                measures["recall_at_least"] = Rate(self.found, self.objects).lower()
            self.kept_metrics = {**measures, "held_out": float(len(self.validator.dataloader.dataset))}

        def _set_pace(self) -> None:
            """Set the learning rate at every step: per epoch, as ultralytics does, a short training ends too high."""
            steps = self.epochs * len(self.train_loader)
            step = min(self.steps, steps)
            if self.args.time:  # a limit in hours: the clock sets the pace, whatever the number of steps
                steps = 1000
                step = min(steps, round(steps * (time.time() - self.train_time_start) / (self.args.time * 3600)))
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"] * pace(step, steps)
            self.steps += 1

        def _measures(self) -> dict[str, float]:
            words = {
                "metrics/precision(B)": "precision",
                "metrics/recall(B)": "recall",
                "metrics/mAP50(B)": "map50",
                "metrics/mAP50-95(B)": "map50_95",
            }
            return {word: float(self.metrics[key]) for key, word in words.items() if key in (self.metrics or {})}

    return QuietTrainer
