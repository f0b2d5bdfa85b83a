"""A result drawn into its image: boxes with their labels, heat maps, and a frame in the colour of the verdict."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from coe.core import Heat, Likeness, Result, Verdict, deciding
from coe.helpers.visible import visible
from coe.pictures.array_images import Order, ordered
from coe.pictures.image_source import ImageLike, ImageSource

_HOT = (255, 60, 0)
"""The colour of a heat map where a score is 1."""
_PAIR = 240
"""The width in pixels of a place that stands beside what good parts show."""
_COLOURS = {Verdict.OK: (0, 150, 60), Verdict.REVIEW: (235, 150, 0), Verdict.NG: (220, 30, 30), None: (110, 110, 110)}


def draw(result: Result, image: ImageLike, *, order: Order | None = None) -> NDArray[np.uint8]:
    """Draw a result into its image, in the forms that `Inspector.submit` takes; returns (H, W, 3) uint8.

    The colours of what is returned are in `order`; without it they are BGR, as `cv2.imwrite` takes them. The image is
    as large as the one that was inspected, so boxes need no scaling. Raises ImageError if it cannot be read.

        cv2.imwrite("SN1-R7.png", coe.draw(result, frame))
    """
    pixels = ImageSource.of(image, order).decode()
    findings = deciding(result.findings)
    for finding in findings:
        if finding.heat is not None:
            pixels = heated(pixels, finding.heat)
    picture = Image.fromarray(pixels)
    pen, width, height = ImageDraw.Draw(picture), picture.width, picture.height
    line = max(1, round(min(width, height) / 200))
    font = ImageFont.load_default(max(10.0, min(width, height) / 30))
    colour = _COLOURS[result.verdict]
    pen.rectangle((0, 0, width - 1, height - 1), outline=colour, width=2 * line)
    texts = [str(result.verdict or result.error)]
    for finding in findings:
        said = finding.doubt or finding.reading
        texts.append(f"{finding.expert}: {finding.label} {shown_score(finding.score)} {said}".rstrip())
        for box in finding.boxes:
            if all(map(math.isfinite, box.xyxy)):
                (left, right), (top, bottom) = sorted(box.xyxy[::2]), sorted(box.xyxy[1::2])
                pen.rectangle((left, top, right, bottom), outline=colour, width=line)
                pen.text(
                    (left + line, bottom + line), f"{box.label} {shown_score(box.score)}", colour, font, stroke_width=0
                )
    at = 3.0 * line
    for text in map(visible, texts):
        area = pen.textbbox((3 * line, at), text, font)
        pen.rectangle((area[0] - line, area[1] - line, area[2] + line, area[3] + line), fill="white")
        pen.text((3 * line, at), text, colour, font)
        at = area[3] + 3.0 * line
    return ordered(np.asarray(picture), order or "BGR")


def heated(pixels: NDArray[np.uint8], heat: Heat) -> NDArray[np.uint8]:
    """Return an image, (H, W, 3) uint8 RGB, in grey under a heat map: the redder, the higher the score there."""
    height, width = pixels.shape[:2]
    grey = np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"), np.float32)[..., None]
    places = Image.frombytes("L", (heat.columns, heat.rows), heat.values)
    share = np.asarray(places.resize((width, height), Image.Resampling.BILINEAR), np.float32)[..., None] / 255
    return np.asarray(grey * (1 - 0.8 * share) + np.array(_HOT, np.float32) * 0.8 * share, np.uint8)


def enlarged_pair(pixels: NDArray[np.uint8], likeness: Likeness) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return what deviates most in an image (H, W, 3) uint8 RGB, and what is most like it in good parts: equally large.

    What lies out of the image is grey.
    """
    good = Image.frombytes("RGB", (likeness.side, likeness.side), likeness.pixels)
    x1, y1, x2, y2 = likeness.box
    image = Image.fromarray(np.ascontiguousarray(pixels))
    size = (_PAIR, max(1, min(4 * _PAIR, round(_PAIR * (y2 - y1) / max(1e-6, x2 - x1)))))
    way = ((x2 - x1) / size[0], 0.0, x1, 0.0, (y2 - y1) / size[1], y1)
    here = image.transform(size, Image.Transform.AFFINE, way, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128))
    return np.asarray(here), np.asarray(good.resize(size, Image.Resampling.BICUBIC))


def shown_score(score: float) -> str:
    """Write a score for people, rounded down: a score under a threshold of 0.80 must not read 0.80."""
    return f"{math.floor(score * 100 + 1e-6) / 100:.2f}" if math.isfinite(score) else "no score"
