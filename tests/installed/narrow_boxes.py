"""A detector for tests beside `narrow`: YOLOv5's pre- and postprocessing around a small network, made in milliseconds.

Three narrow blocks look at cells of eight pixels; two layers that look at the whole image make its weights as large as
those of YOLOv5n: 4 MB.
"""

import torch
from torch import nn

from experts.resnet import Block
from experts.yolov5 import YoloV5

STRIDE, CHANNELS, HIDDEN = 8, 128, 2150
RARE = -5.0
"""The bias of scores, with which a network of random weights finds nothing, as a random YOLOv5."""


class NarrowBoxes(YoloV5):
    """The kind: all but its network is what a YOLOv5 has."""

    def __init__(self):
        super().__init__("n")
        self.name = "narrow_boxes"

    def skeleton(self, expert):
        return Boxes(len(expert.labels)).eval()


class Boxes(nn.Module):
    """Gives each cell a box around it, and a score for each label: (n, 4 + labels, cells)."""

    def __init__(self, labels):
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 32, stride=2), Block(32, 64, stride=2), Block(64, CHANNELS, stride=2))
        self.wide = nn.Linear(CHANNELS, HIDDEN)
        self.deep = nn.Linear(HIDDEN, CHANNELS)
        self.boxes = nn.Conv2d(CHANNELS, 4, 1)
        self.scores = nn.Conv2d(CHANNELS, labels, 1)
        nn.init.constant_(self.scores.bias, RARE)

    def forward(self, images):
        cells = self.blocks(images)
        cells = cells + self.deep(self.wide(cells.mean((2, 3))).relu())[:, :, None, None]
        boxes, scores = self.boxes(cells).sigmoid(), self.scores(cells).sigmoid()
        rows, columns = (torch.arange(size, device=cells.device, dtype=cells.dtype) + 0.5 for size in cells.shape[2:])
        centres = torch.stack((columns.expand(len(rows), -1), rows[:, None].expand(-1, len(columns))))
        boxes = STRIDE * torch.cat((centres + boxes[:, :2] - 0.5, 4 * boxes[:, 2:]), 1)
        return torch.cat((boxes, scores), 1).flatten(2)
