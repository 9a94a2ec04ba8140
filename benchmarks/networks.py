"""The networks of run.py as PyTorch modules, their batches, and their export to ONNX. Needs torch."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
MLP_SIZES = (1024, 4096, 4096, 1000)
VOCABULARY, WIDTH, HEADS, LAYERS, TOKENS = 8192, 512, 8, 6, 128
LSTM_VOCABULARY, LSTM_WIDTH, LSTM_LAYERS, LSTM_TOKENS = 256, 512, 4, 32
BATCHES = {"lenet": 64, "mlp": 128, "gpt": 8, "resnet50": 16, "lstm": 32}


class Block(nn.Module):
    """A transformer block: causal attention and a perceptron, each with a normalised input and a shortcut."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, self.width // self.heads)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(self.width, dim=-1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Maps tokens [batch, tokens] to the logits [batch * tokens, vocabulary] of the next tokens."""

    def __init__(
        self,
        vocabulary: int = VOCABULARY,
        width: int = WIDTH,
        heads: int = HEADS,
        layers: int = LAYERS,
        tokens: int = TOKENS,
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places.weight))).flatten(0, 1)


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """Returns the network of https://arxiv.org/abs/1512.03385, with the stride in the 3x3 convolution, as in
    torchvision."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(blocks):
            layers.append(Bottleneck(channels, width, stride if i == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def mlp(sizes: tuple[int, ...] = MLP_SIZES) -> nn.Module:
    a, b, c, d = sizes
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))


class InTime(nn.Module):
    """Transposes [a, b, ...] to [b, a, ...], as the sequence is the first dimension of recurrent layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1)


class LstmLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0]


def lstm(vocabulary: int = LSTM_VOCABULARY, width: int = LSTM_WIDTH, layers: int = LSTM_LAYERS) -> nn.Module:
    """Returns a network from tokens [batch, tokens] to the logits [batch * tokens, vocabulary] of the next tokens."""
    begin = nn.Sequential(InTime(), nn.Embedding(vocabulary, width))
    end = nn.Sequential(nn.Linear(width, vocabulary), InTime(), nn.Flatten(0, 1))
    return nn.Sequential(begin, *[LstmLayer(width) for _ in range(layers)], end)


def lenet() -> nn.Module:
    sys.path.append(str(ROOT / "examples/mnist"))
    from export_lenet import LeNet

    return LeNet()


def network(name: str) -> nn.Module:
    """Returns the network, with the same parameters each time, in training mode."""
    torch.manual_seed(0)
    return {"lenet": lenet, "mlp": mlp, "gpt": Gpt, "resnet50": resnet50, "lstm": lstm}[name]().train()


def batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns one global batch: the input, and a label for each row of the network's output."""
    random = torch.Generator().manual_seed(1)
    size = BATCHES[name]
    if name in ("gpt", "lstm"):
        vocabulary, length = {"gpt": (VOCABULARY, TOKENS), "lstm": (LSTM_VOCABULARY, LSTM_TOKENS)}[name]
        tokens = torch.randint(vocabulary, (size, length + 1), generator=random)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
    shape, classes = {"lenet": ((1, 28, 28), 10), "mlp": (MLP_SIZES[:1], 1000), "resnet50": ((3, 224, 224), 1000)}[name]
    return torch.randn(size, *shape, generator=random), torch.randint(classes, (size,), generator=random)


def export(name: str, path: Path) -> None:
    """Exports the network to ONNX, with input "x" of the symbolic dimension "batch" and output "logits"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x: Any = batch(name)[0][:2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network(name).eval(),
            (x,),
            path,
            dynamo=True,
            optimize=False,
            verbose=False,
            external_data=False,
            input_names=["x"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=2)},),
        )
