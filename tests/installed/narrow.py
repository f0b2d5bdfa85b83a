"""A kind for tests, in a package of its own: a ResNet of three narrow blocks, whose experts are made in milliseconds.

The folder lies in the path of the tests, so that the kind is found by its name, `narrow`, like a kind that a user
installed. Two layers behind the blocks make its weights larger than what a batch of small images takes: 6 MB.
"""

from collections import OrderedDict

from torch import nn

from experts.resnet import Block, ResNet

HIDDEN = 2048


class Narrow(ResNet):
    """The kind: all but its network is what a ResNet of full width has."""

    def __init__(self):
        super().__init__(18)
        self.name = "narrow"

    def skeleton(self, expert):
        layers = {
            "conv1": nn.Conv2d(3, 32, 3, 2, 1, bias=False),
            "bn1": nn.BatchNorm2d(32),
            "relu": nn.ReLU(inplace=True),
            "layer1": Block(32, 32, stride=2),
            "layer2": Block(32, 64, stride=2),
            "layer3": Block(64, 128, stride=2),
            "avgpool": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "wide": nn.Sequential(nn.Linear(128, HIDDEN), nn.ReLU(inplace=True)),
            "deep": nn.Sequential(nn.Linear(HIDDEN, 384), nn.ReLU(inplace=True)),
            "fc": nn.Linear(384, len(expert.labels)),
        }
        return nn.Sequential(OrderedDict(layers)).eval()
