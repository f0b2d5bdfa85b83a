"""The files of labels of a YOLO data set, read before training: ultralytics leaves out pictures whose file is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coe.errors import ConfigError, list_few
from experts.taken import DataPart, TrainingPicture

_SHOWN = 10
_WHY = "ignoring corrupt image/label: "


def check(pictures: Sequence[TrainingPicture], labels: int, source: Path) -> tuple[str, ...]:
    """Return sentences about images without a file; raises ConfigError with all files that are wrong.

    Also if no image to learn from has an object. `labels` is the number of labels, and `source` the file of the data
    set. `ultralytics` must be quiet by now.
    """
    from ultralytics.data import utils

    missing, wrong, learns, file = list[str](), list[str](), False, source
    files = map(Path, utils.img2label_paths([str(one.path) for one in pictures]))
    for picture, file in zip(pictures, files, strict=True):
        _, boxes, *_, message = utils.verify_image_label((str(picture.path), str(file), "", False, labels, 0, 0, False))
        learns |= picture.part is DataPart.TRAINING and boxes is not None and len(boxes) > 0
        if _WHY in message:
            wrong.append(f"{_named(file)} ({message.partition(_WHY)[2]:.120})")
        elif not file.is_file():
            missing.append(_named(picture.path))
    if wrong:
        raise ConfigError(
            f"data set '{source}': {len(wrong)} files of labels are wrong: {list_few(wrong, _SHOWN, '; ')}; each line "
            f"is the number of a label, 0 to {labels - 1}, then centre and size of a box, or the corners of a polygon, "
            "as shares of the picture"
        )
    if not learns:
        raise ConfigError(
            f"data set '{source}': nothing is marked in the images to learn from; labels of the last are looked for in "
            f"'{file}'"
        )
    bare = f"without a file of labels, and so without an object: {len(missing)}, {list_few(missing, _SHOWN, '; ')}"
    return (bare,) if missing else ()


def _named(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"  # each part may have a file of one name
