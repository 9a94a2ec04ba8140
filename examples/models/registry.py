"""The registry of the architectures in this folder: small ones with random weights, of each kind that people train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

BATCH = 4  # the batch of each example, divisible by one, two and four ranks


@dataclass(frozen=True)
class Example:
    """A module with one output, and a batch for it.

    `loss` is the loss of the output: "cross_entropy" of logits [batch, classes, ...] and labels [batch, ...], or
    "mean_squared_error" of a prediction and a target of its shape.
    """

    module: nn.Module
    inputs: dict[str, torch.Tensor]  # by name of forward's parameters; dimension 0 is the batch
    target: torch.Tensor
    loss: str = "cross_entropy"
    fixed: set[str] = field(default_factory=set)  # inputs whose dimension 0 is not the batch


EXAMPLES: dict[str, Callable[[], Example]] = {}

# Seeds for examples where the default seed puts the argument of a ReLU so close to 0 that rounding decides its sign.
SEEDS = {"unet_bilinear": 1}


def example(make: Callable[[], Example]) -> Callable[[], Example]:
    """Registers the function `make`, which makes an Example, under its name."""
    EXAMPLES[make.__name__] = make
    return make


def labels(classes: int, *shape: int) -> torch.Tensor:
    """Returns labels [batch, *shape] below `classes`."""
    return torch.randint(classes, (BATCH, *shape))


def images(channels: int = 3, size: int = 32) -> torch.Tensor:
    return torch.randn(BATCH, channels, size, size)


def tokens(vocabulary: int, length: int) -> torch.Tensor:
    return torch.randint(vocabulary, (BATCH, length))


def classifier(module: nn.Module, size: int = 32, classes: int = 10) -> Example:
    """Returns an example of a module from images to the logits of `classes`."""
    return Example(module, {"image": images(size=size)}, labels(classes))


def language_model(module: nn.Module, vocabulary: int, length: int) -> Example:
    """Returns an example of a module from tokens to the logits of the next ones: [batch, vocabulary, length]."""
    return Example(module, {"tokens": tokens(vocabulary, length)}, labels(vocabulary, length))


def make(name: str) -> Example:
    """Returns the example of that name, with the same parameters each time, in evaluation mode.

    All its tensors differ, as after some training: exporters merge equal tensors.
    """
    torch.manual_seed(SEEDS.get(name, 0))
    made = EXAMPLES[name]()
    made.module.eval()
    with torch.no_grad():
        for tensor in [*made.module.parameters(), *made.module.buffers()]:
            if tensor.is_floating_point():
                tensor.mul_(1 + 0.1 * torch.rand_like(tensor)).add_(0.01 * torch.rand_like(tensor))
    return made
