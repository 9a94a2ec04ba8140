"""Trains a JAX model, exported by jax2onnx, in Lockstep and in JAX, and compares the losses.

python examples/frameworks/jax_model.py      # docs/frameworks.md says what it needs
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from comparison import BATCH, RATE, STEPS, compare, data, losses
from flax import nnx
from jax2onnx import to_onnx


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 8, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.hidden = nnx.Linear(8 * 6 * 6, 32, rngs=rngs)
        self.out = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.conv(image)))
        return self.out(nnx.gelu(self.hidden(x.reshape(x.shape[0], -1))))


def own_losses(module: Model, images: np.ndarray, labels: np.ndarray) -> list[float]:
    definition, parameters = nnx.split(module)

    def loss(parameters: nnx.State) -> jax.Array:
        scores = jax.nn.log_softmax(nnx.merge(definition, parameters)(images))
        return -jnp.mean(scores[jnp.arange(BATCH), labels])

    found = []
    for _ in range(STEPS):
        value, gradients = jax.value_and_grad(loss)(parameters)
        parameters = jax.tree.map(lambda parameter, gradient: parameter - RATE * gradient, parameters, gradients)
        found.append(float(value))
    return found


def main() -> None:
    module = Model(nnx.Rngs(0))
    images, labels = data((12, 12, 3), 10)
    exported = to_onnx(module, [("batch", 12, 12, 3)])
    [name] = [info.name for info in exported.graph.input]
    compare("jax", lambda: own_losses(module, images, labels), losses(exported, {name: images}, labels))


if __name__ == "__main__":
    main()
