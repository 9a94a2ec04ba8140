"""The LeNet of examples/mnist, written as a graph: the same model as mnist/lenet.onnx, without PyTorch and ONNX.

python examples/graphs/lenet.py        # prints the layers
"""

from __future__ import annotations

import math

import lockstep as ls
from lockstep.graph import Value, nn


def conv(x: Value, name: str, channels: int, kernel: int) -> Value:
    g, init = x.graph, ls.graph.init.kaiming_uniform(math.sqrt(5))
    with g.scope(name):
        weight = g.state("weight", (channels, x.shape[1], kernel, kernel), init=init)
        return nn.conv(x, weight, g.state("bias", (channels,)))


def linear(x: Value, name: str, outputs: int) -> Value:
    g, init = x.graph, ls.graph.init.kaiming_uniform(math.sqrt(5))
    with g.scope(name):
        weight = g.state("weight", (outputs, x.shape[1]), init=init)
        return nn.linear(x, weight, g.state("bias", (outputs,)))


def lenet(batch: int, seed: int = 0) -> ls.Graph:
    """Returns a model from images `image` f32[batch, 1, 28, 28] to the `logits` f32[batch, 10] of ten classes."""
    g = ls.graph.Builder("lenet", seed)
    image = g.input("image", "f32", (batch, 1, 28, 28), split=0)
    x = nn.max_pool(ls.graph.tanh(conv(image, "conv1", 20, kernel=5)), 2)
    x = nn.max_pool(ls.graph.tanh(conv(x, "conv2", 50, kernel=5)), 2)
    x = ls.graph.tanh(linear(x.flatten(1), "fc1", 500))
    g.result("logits", linear(x, "fc2", 10))
    return g.finish()


if __name__ == "__main__":
    print(lenet(batch=64).summary())
