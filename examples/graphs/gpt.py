"""The GPT of examples/language, written as a graph: the same model as language/model.py writes as ONNX.

python examples/graphs/gpt.py        # prints the layers
"""

from __future__ import annotations

import math

import lockstep as ls
from lockstep.graph import Value, nn

VOCABULARY = 256  # bytes
DEVIATION = 0.02  # of initial weights, as in GPT-2


def linear(x: Value, name: str, outputs: int, deviation: float = DEVIATION) -> Value:
    with x.graph.scope(name):
        weight = x.graph.state("weight", (outputs, x.shape[-1]), init=ls.graph.init.normal(std=deviation))
        return nn.linear(x, weight, x.graph.state("bias", (outputs,)))


def layer_norm(x: Value, name: str) -> Value:
    with x.graph.scope(name):
        weight = x.graph.state("weight", (x.shape[-1],), init=1.0)
        return nn.layer_norm(x, weight, x.graph.state("bias", (x.shape[-1],)))


def attention(x: Value, heads: int, deviation: float) -> Value:
    batch, length, width = x.shape
    with x.graph.scope("attention"):
        qkv = linear(x, "qkv", 3 * width).reshape(batch, length, 3, heads, width // heads)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        y = nn.attention(q, k, v, causal=True)
        return linear(y.transpose(0, 2, 1, 3).reshape(batch, length, width), "out", width, deviation)


def mlp(x: Value, deviation: float) -> Value:
    with x.graph.scope("mlp"):
        hidden = nn.gelu(linear(x, "up", 4 * x.shape[-1]), approximate=True)
        return linear(hidden, "down", x.shape[-1], deviation)


def block(x: Value, heads: int, dropout: float, deviation: float) -> Value:
    x = x + nn.dropout(attention(layer_norm(x, "norm1"), heads, deviation), dropout)
    return x + nn.dropout(mlp(layer_norm(x, "norm2"), deviation), dropout)


def gpt(
    batch: int,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    length: int = 128,
    dropout: float = 0.1,
    seed: int = 0,
) -> ls.Graph:
    """Returns a model from bytes `tokens` i64[batch, length] to `logits` f32[batch, 256, length] of the next byte."""
    g = ls.graph.Builder("gpt", seed)
    tokens = g.input("tokens", "i64", (batch, length), split=0)
    embedding = g.state("embedding.weight", (VOCABULARY, width), init=ls.graph.init.normal(std=DEVIATION))
    positions = g.state("positions.weight", (length, width), init=ls.graph.init.normal(std=DEVIATION))
    x = nn.dropout(nn.embedding(tokens, embedding) + positions, dropout)
    for i in range(layers):
        with g.scope(f"blocks/{i}"):
            x = block(x, heads, dropout, DEVIATION / math.sqrt(2 * layers))
    logits = layer_norm(x, "norm") @ embedding.T
    g.result("logits", logits.transpose(0, 2, 1))
    return g.finish()


if __name__ == "__main__":
    print(gpt(batch=32).summary())
