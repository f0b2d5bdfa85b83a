"""What a network sees of a picture, and what its numbers mean. Both belong to a model and are kept with its weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Colour = tuple[float, float, float]
"""One number for each channel, in the order in which the network takes the channels."""
_Mean = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
_Deviation = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
_Grey = Annotated[int, Field(ge=0, le=255)]
_Side = Annotated[int, Field(ge=1, le=1 << 16)]

NORMALIZATIONS: dict[str, tuple[Colour, Colour]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "0..1": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "-1..1": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "0..255": ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
}
"""The usual normalisations by name: mean and standard deviation."""

Resize = Literal["letterbox", "stretch", "center-crop"]
Interpolation = Literal["area", "bilinear", "bicubic", "bilinear-antialias", "bicubic-antialias"]
Channels = Literal["rgb", "bgr"]
Layout = Literal["scores", "yolov8", "corners", "yolov5", "end2end"]
Activation = Literal["none", "softmax", "sigmoid"]


class Preprocessing(BaseModel):
    """What a network sees of a picture.

    `resize`: a letterbox keeps the aspect and pads with the colour `pad`; a stretch makes each side `shortest_edge`
    pixels long (None: the input size), a centre crop the shorter side, and of both the middle square is kept.

    `interpolation`: area, bilinear and bicubic are OpenCV's (area enlarges bilinearly); with `-antialias` they are
    Pillow's, which torchvision's transforms use. The network gets (value / 255 - `mean`) / `std` of each channel, in
    the order `channels`. `sides` are height and width of what it sees, the upper left part of the square input that
    the longer is a side of; None for the whole square. A middle that lies between two pixels begins at the even one, as
    torchvision's does, or at the first if the crop `rounds_down`, as Hugging Face's does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    resize: Resize = "letterbox"
    interpolation: Interpolation = "area"
    pad: tuple[_Grey, _Grey, _Grey] = (114, 114, 114)
    shortest_edge: _Side | None = None
    channels: Channels = "rgb"
    mean: tuple[_Mean, _Mean, _Mean] = (0.0, 0.0, 0.0)
    std: tuple[_Deviation, _Deviation, _Deviation] = (1.0, 1.0, 1.0)
    sides: tuple[_Side, _Side] | None = None
    rounds_down: bool = False

    @property
    def normalization(self) -> tuple[Colour, Colour]:
        """Mean and standard deviation."""
        return self.mean, self.std

    def described(self, size: int) -> str:
        """Return in words what a network with an input of `size` pixels sees."""
        height, width = self.sides or (size, size)
        edge, area = self.shortest_edge, f"{width} x {height} pixels"
        cut = f" and cropped to the middle {area}; the rest is not seen"
        is_cut = edge is not None and (edge, edge) != (height, width)
        scaled = (
            f"scaled to {edge or size} pixels on its shorter side" if is_cut or height == width else "scaled to fill"
        )
        shapes = {
            "letterbox": f"scaled to fit {area} and padded with the colour {_text(self.pad)}",
            "stretch": f"stretched to {edge} x {edge} pixels{cut}" if is_cut else f"stretched to {area}",
            "center-crop": f"{scaled}{cut}",
        }
        named = [name for name, values in NORMALIZATIONS.items() if values == self.normalization]
        numbers = f"mean {_text(self.mean)} and std {_text(self.std)}"
        if named:
            numbers = "ImageNet's normalisation" if named[0] == "imagenet" else f"values {named[0]}"
        return f"{shapes[self.resize]} ({self.interpolation}), as {self.channels.upper()} with {numbers}"


class Outputs(BaseModel):
    """What the numbers of a model file mean; None or "" for what is not known yet.

    `name` is the output that counts. `layout`: scores are (n, labels), or (n, 1) for the second of two labels; yolov8
    is (n, 4 + labels, N) of centre, size, scores, or (n, N, 4 + labels); corners the same with two corners; yolov5
    (n, N, 5 + labels) with an objectness before the scores; end2end (n, N, 6) of corners, score, label. `activation`
    turns scores into probabilities; softmax drops a last one, of no object. Boxes are in pixels, or `shares` of sides.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    layout: Layout | None = None
    activation: Activation | None = None
    shares: bool = False

    def described(self) -> str:
        """Return in words which output counts, and what it holds."""
        meanings = {"none": "probabilities", "softmax": "logits, which get a softmax", "sigmoid": "logits of a sigmoid"}
        scores = meanings[self.activation or "none"]
        if self.layout == "scores":
            return f"the output '{self.name}' holds {scores}"
        shares = ", as fractions of the picture" if self.shares else ""
        beside = f", beside {scores}" if self.activation else ""
        return f"the output '{self.name}' holds boxes in the layout {self.layout}{shares}{beside}"


def _text(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in (numbers[:1] if len(set(numbers)) == 1 else numbers))
