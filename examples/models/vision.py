"""Convolutional networks and their successors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from registry import BATCH, Example, classifier, example, images, labels
from torch import nn


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU
) -> nn.Sequential:
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class Residual(nn.Module):
    """The basic block of ResNet (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv_norm(inputs, outputs, 3, stride)
        self.conv2 = conv_norm(outputs, outputs, 3, act=None)
        self.shortcut = (
            conv_norm(inputs, outputs, 1, stride, act=None) if stride > 1 or inputs != outputs else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv2(self.conv1(x)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.blocks(self.stem(image)), 1), 1))


@example
def resnet() -> Example:
    return classifier(ResNet())


class Dense(nn.Module):
    """A layer of DenseNet (Huang et al., 2016): concatenates its result to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.conv(torch.relu(self.norm(x)))], 1)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.block1 = nn.Sequential(Dense(8, 4), Dense(12, 4))
        self.transition = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1, bias=False), nn.AvgPool2d(2))
        self.block2 = nn.Sequential(Dense(8, 4), Dense(12, 4))
        self.norm, self.fc = nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.block2(self.transition(self.block1(self.stem(image))))
        return self.fc(torch.relu(self.norm(x)).mean((2, 3)))


@example
def densenet() -> Example:
    return classifier(DenseNet(), size=16)


class InvertedResidual(nn.Module):
    """MobileNetV2's block (Sandler et al., 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.body = nn.Sequential(
            conv_norm(inputs, hidden, 1, act=nn.ReLU6),
            conv_norm(hidden, hidden, 3, stride, groups=hidden, act=nn.ReLU6),
            conv_norm(hidden, outputs, 1, act=None),
        )
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


@example
def mobilenet_v2() -> Example:
    blocks = [InvertedResidual(8, 8, 1, 2), InvertedResidual(8, 12, 2, 3), InvertedResidual(12, 12, 1, 3)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)]
    return classifier(Named(nn.Sequential(conv_norm(3, 8, 3, 2, act=nn.ReLU6), *blocks, conv_norm(12, 24, 1), *head)))


class Named(nn.Module):
    """A module whose input is called `image`."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.body(image)


class Shuffle(nn.Module):
    """ShuffleNetV2's unit (Ma et al., 2018): half of the channels pass unchanged, then both halves are mixed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            conv_norm(half, half, 1), conv_norm(half, half, 3, groups=half, act=None), conv_norm(half, half, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, worked = x.chunk(2, 1)
        x = torch.cat([kept, self.branch(worked)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


@example
def shufflenet_v2() -> Example:
    body = nn.Sequential(
        conv_norm(3, 16, 3, 2), Shuffle(16), Shuffle(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )
    return classifier(Named(body), size=16)


class SqueezeExcite(nn.Module):
    """EfficientNet's block (Tan and Le, 2019): an inverted residual with weights of channels computed from all
    channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = 3 * channels
        self.expand = conv_norm(channels, hidden, 1, act=nn.SiLU)
        self.depthwise = conv_norm(hidden, hidden, 5, groups=hidden, act=nn.SiLU)
        self.squeeze, self.excite = nn.Conv2d(hidden, 4, 1), nn.Conv2d(4, hidden, 1)
        self.project = conv_norm(hidden, channels, 1, act=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(self.expand(x))
        weights = torch.sigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.project(y * weights)


@example
def efficientnet() -> Example:
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return classifier(
        Named(nn.Sequential(conv_norm(3, 8, 3, 2, act=nn.SiLU), SqueezeExcite(8), SqueezeExcite(8), *head)), size=16
    )


class InceptionBlock(nn.Module):
    """Four parallel branches (Szegedy et al., 2014), with the factorised filters of 2015."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one = conv_norm(inputs, 4, 1)
        self.three = nn.Sequential(conv_norm(inputs, 4, 1), conv_norm(4, 6, 3))
        self.factored = nn.Sequential(
            nn.Conv2d(inputs, 4, (1, 7), padding=(0, 3)), nn.Conv2d(4, 4, (7, 1), padding=(3, 0))
        )
        self.pooled = nn.Conv2d(inputs, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self.pooled(F.avg_pool2d(x, 3, 1, 1, count_include_pad=False))
        return torch.cat([self.one(x), self.three(x), torch.relu(self.factored(x)), pooled], 1)


@example
def inception() -> Example:
    body = nn.Sequential(
        conv_norm(3, 8, 3, 2),
        InceptionBlock(8),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        InceptionBlock(18),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return classifier(Named(nn.Sequential(body, nn.Linear(18, 10))))


def vgg_layers(normalise: bool) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (8, 16):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1)]
        layers += [nn.BatchNorm2d(outputs)] if normalise else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, 10))


@example
def vgg() -> Example:
    return classifier(Named(vgg_layers(normalise=False)), size=16)


@example
def vgg_bn() -> Example:
    return classifier(Named(vgg_layers(normalise=True)), size=16)


class ConvNeXtBlock(nn.Module):
    """A wide depthwise filter, then a perceptron per position, with layer normalisation and scales (Liu et al.,
    2022)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand, self.project = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(0.1 * torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.project(F.gelu(self.expand(y)))).permute(0, 3, 1, 2)


@example
def convnext() -> Example:
    body = nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), ConvNeXtBlock(16), ConvNeXtBlock(16), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return classifier(Named(nn.Sequential(body, nn.LayerNorm(16), nn.Linear(16, 10))))


class UNet(nn.Module):
    """A U-Net (Ronneberger et al., 2015) of two levels: one goes up by a transposed convolution, one by
    interpolation."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.down1, self.down2, self.middle = conv_norm(3, 8, 3), conv_norm(8, 12, 3), conv_norm(12, 16, 3)
        self.up2 = nn.ConvTranspose2d(16, 12, 2, 2)
        self.join2, self.join1 = conv_norm(24, 12, 3), conv_norm(20, 8, 3)
        self.out = nn.Conv2d(8, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.down1(image)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.middle(F.max_pool2d(second, 2))
        x = self.join2(torch.cat([self.up2(x), second], 1))
        align = None if self.mode == "nearest" else False
        x = F.interpolate(x, scale_factor=2, mode=self.mode, align_corners=align)
        return self.out(self.join1(torch.cat([x, first], 1)))


def segmenter(mode: str) -> Example:
    return Example(UNet(mode), {"image": images(size=16)}, labels(4, 16, 16))


@example
def unet_nearest() -> Example:
    return segmenter("nearest")


@example
def unet_bilinear() -> Example:
    return segmenter("bilinear")


@example
def unet_bicubic() -> Example:
    return segmenter("bicubic")


@example
def autoencoder() -> Example:
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ELU(),
        nn.ConvTranspose2d(12, 8, 3, 2, 1, output_padding=1), nn.LeakyReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
    return Example(Named(body), {"image": images(size=16)}, torch.rand(BATCH, 3, 16, 16), "mean_squared_error")


class MixerBlock(nn.Module):
    """Perceptrons over positions and over channels in alternation (Tolstikhin et al., 2021)."""

    def __init__(self, places: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.over_places = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.over_channels = nn.Sequential(nn.Linear(channels, 32), nn.GELU(), nn.Linear(32, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.over_places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.Sequential(MixerBlock(16, 16), MixerBlock(16, 16))
        self.norm, self.fc = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(self.blocks(self.patches(image).flatten(2).transpose(1, 2))).mean(1))


@example
def mixer() -> Example:
    return classifier(Mixer(), size=16)
