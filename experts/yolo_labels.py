"""The files of labels of a YOLO data set, read before training: ultralytics leaves out pictures whose file is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coe.errors import ConfigError

_SHOWN = 10
_WHY = "ignoring corrupt image/label: "


def check(images: Sequence[Path], labels: int, source: Path) -> tuple[str, ...]:
    """Return sentences about images without a file; raises ConfigError with all files that are wrong.

    `labels` is the number of labels, and `source` the file of the data set. `ultralytics` must be quiet by now.
    """
    from ultralytics.data import utils

    missing, wrong = list[str](), list[str]()
    for image, file in zip(images, map(Path, utils.img2label_paths([str(one) for one in images])), strict=True):
        *_, message = utils.verify_image_label((str(image), str(file), "", False, labels, 0, 0, False))
        if _WHY in message:
            wrong.append(f"{_named(file)} ({message.partition(_WHY)[2]:.120})")
        elif not file.is_file():
            missing.append(_named(image))
    if wrong:
        raise ConfigError(
            f"data set '{source}': {len(wrong)} files of labels are wrong: {_few(wrong)}; each line is the number of a "
            f"label, 0 to {labels - 1}, then centre and size of a box, or the corners of a polygon, as shares of the "
            "picture"
        )
    return (f"without a file of labels, and so without an object: {len(missing)}, {_few(missing)}",) if missing else ()


def _named(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"  # each part may have a file of one name


def _few(names: Sequence[str]) -> str:
    return "; ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
