"""YOLOv5 detectors: ultralytics' network as a plain module, with our pre- and postprocessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coe.core import Expert, Finding
from coe.helpers.preprocessing import NORMALIZATIONS, Preprocessing
from coe.store.kinds import ExpertInput, Foreign, Image, ModuleKind, Progress, Trained, TrainingPlan
from coe.store.outputs import unhidden
from experts import quiet_ultralytics
from experts.findings import Cut, detected
from experts.fitting_state import fitted
from experts.geometry import fitted_image
from experts.normalising import normalised

PADDING = (114, 114, 114)
"""The grey that YOLO networks are trained to see around an image."""


class YoloV5(ModuleKind):
    """A YOLOv5 of a size n, s, m or l, with ultralytics' anchor-free head.

    `cut` says which boxes are kept. `augment` are ultralytics' training arguments; they mirror nothing, because a
    mirrored part may be a defect.
    """

    task = "detect"
    max_batch = 16
    preprocessing = Preprocessing(pad=PADDING)
    cut = Cut(threshold=0.25, overlap=0.45, most=300)
    augment: Mapping[str, Any] = {"translate": 0.05, "scale": 0.1, "hsv_h": 0.0, "hsv_s": 0.1, "hsv_v": 0.2}

    def __init__(self, size: str) -> None:
        self.name = f"yolov5{size}"

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        return fitted_image(image, expert.input_size, expert.preprocessing or self.preprocessing)

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        quiet_ultralytics.prepare()
        from ultralytics.nn.tasks import DetectionModel

        module: torch.nn.Module = DetectionModel(f"{self.name}.yaml", nc=len(expert.labels), verbose=False)
        return module.eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return (n, 4 + labels, candidates): centre, width, height in pixels of the input, a score for each label."""
        outputs = module(normalised(images, module, NORMALIZATIONS["0..1"]))
        if not isinstance(outputs, tuple):
            return outputs  # type: ignore[no-any-return]
        decoded, raw = outputs
        return torch.cat((decoded[:, :4], unhidden(raw["scores"]).sigmoid()), dim=1)

    def postprocess(self, outputs: torch.Tensor, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        return detected(outputs.float().cpu().numpy(), prepared, expert, self.cut)

    def read(self, path: Path) -> Foreign:
        """Open a file for import: safetensors, a state dict, or an ultralytics checkpoint; raises StoreError.

        Only ultralytics makes this network, and shows it what `LETTERBOX` says.
        """
        from experts.checkpoint import read_checkpoint
        from experts.records import LETTERBOX, longer_side

        foreign = super().read(path) if path.suffix == ".safetensors" else read_checkpoint(path)
        if foreign.labels is not None and path.suffix == ".safetensors":  # one of this program's own
            return foreign
        arguments = foreign.settings.get("train_args")
        size = longer_side(arguments.get("imgsz")) if isinstance(arguments, dict) and foreign.layers else None
        return replace(foreign, input_size=size, seen=dict(LETTERBOX))

    convert = fitted

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        from experts import yolov5_train

        return yolov5_train.train(expert, plan, progress, self.augment)


yolov5n = YoloV5("n")
yolov5s = YoloV5("s")
yolov5m = YoloV5("m")
yolov5l = YoloV5("l")
