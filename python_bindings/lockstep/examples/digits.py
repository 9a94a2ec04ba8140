"""Trains a small LeNet on pictures of digits that this program draws, in seconds and without a download.

    python -m lockstep.examples.digits
    lockstep launch -n 2 python -m lockstep.examples.digits

The pictures are synthetic: the digits of a font of 5 by 7 dots, moved, enlarged, and covered with noise. They are much
easier than handwritten digits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

import lockstep as ls

# The dots of the digits 0 to 9, from the top. Each row is a number of five bits.
FONT = [
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
]
# A small LeNet as the text of a graph, over the global batch of `n` pictures.
LENET = """
graph @lenet(%image: f32[{n},1,28,28] split(0), state %conv1.weight: f32[6,1,5,5], state %conv1.bias: f32[6], state %conv2.weight: f32[16,6,5,5], state %conv2.bias: f32[16], state %fc1.weight: f32[120,256], state %fc1.bias: f32[120], state %fc2.weight: f32[10,120], state %fc2.bias: f32[10]) -> (logits: f32[{n},10]) {{
  %0 = convolution %image, %conv1.weight {{dilation=[1, 1], padding_high=[0, 0], padding_low=[0, 0], stride=[1, 1]}} : f32[{n},6,24,24]
  %1 = broadcast %conv1.bias {{dims=[1], shape=[{n}, 6, 24, 24]}} : f32[{n},6,24,24]
  %2 = add %0, %1 : f32[{n},6,24,24]
  %3 = tanh %2 : f32[{n},6,24,24]
  %4 = max_pool %3 {{dilation=[1, 1], padding_high=[0, 0], padding_low=[0, 0], stride=[2, 2], window=[2, 2]}} : f32[{n},6,12,12]
  %5 = convolution %4, %conv2.weight {{dilation=[1, 1], padding_high=[0, 0], padding_low=[0, 0], stride=[1, 1]}} : f32[{n},16,8,8]
  %6 = broadcast %conv2.bias {{dims=[1], shape=[{n}, 16, 8, 8]}} : f32[{n},16,8,8]
  %7 = add %5, %6 : f32[{n},16,8,8]
  %8 = tanh %7 : f32[{n},16,8,8]
  %9 = max_pool %8 {{dilation=[1, 1], padding_high=[0, 0], padding_low=[0, 0], stride=[2, 2], window=[2, 2]}} : f32[{n},16,4,4]
  %10 = reshape %9 {{shape=[{n}, 256]}} : f32[{n},256]
  %11 = matmul %10, %fc1.weight {{transpose_b=true}} : f32[{n},120]
  %12 = broadcast %fc1.bias {{dims=[1], shape=[{n}, 120]}} : f32[{n},120]
  %13 = add %11, %12 : f32[{n},120]
  %14 = tanh %13 : f32[{n},120]
  %15 = matmul %14, %fc2.weight {{transpose_b=true}} : f32[{n},10]
  %16 = broadcast %fc2.bias {{dims=[1], shape=[{n}, 10]}} : f32[{n},10]
  %logits = add %15, %16 : f32[{n},10]
  return %logits
}}
"""  # fmt: skip


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images f32[count, 1, 28, 28] and labels i64[count]."""
    random = np.random.default_rng(seed)
    dots = np.array([[[row >> bit & 1 for bit in range(4, -1, -1)] for row in digit] for digit in FONT], np.float32)
    images = random.normal(0, 0.2, (count, 1, 28, 28)).astype(np.float32)
    labels = random.integers(0, 10, count)
    for image, label in zip(images[:, 0], labels, strict=True):
        digit = np.kron(dots[label], np.ones((3, 3), np.float32))
        top, left = (random.integers(0, 28 - extent + 1) for extent in digit.shape)
        image[top : top + digit.shape[0], left : left + digit.shape[1]] += digit
    return images, labels


def train(world: ls.Communicator, batch: int, epochs: int, samples: int) -> tuple[list[float], float]:
    """Trains on all ranks of the world; returns the losses of all steps, and the accuracy over other pictures."""
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    model = ls.parse(LENET.format(n=batch))
    exe = ls.compile(ls.train_step(model, loss=loss, optimizer=ls.optim.Adam(0.005)), world=world)
    random = np.random.default_rng(0)  # equal weights on all ranks
    for state in model.states:
        if len(state.shape) > 1:  # biases start at 0
            bound = 1 / np.sqrt(np.prod(state.shape[1:]))
            exe.state[state.name] = random.uniform(-bound, bound, state.shape).astype(np.float32)

    images, labels = draw(samples, seed=1)
    losses = []
    begin = time.perf_counter()
    for epoch in range(epochs):
        for image, label in ls.data.batches(images, labels, size=batch, world=world, seed=epoch):
            losses.append(float(exe(image=image, label=label)["loss"]))
            if world.rank == 0 and len(losses) in (1, *range(10, 10**6, 10)):
                print(f"step {len(losses):4d}  loss {losses[-1]:.4f}  {time.perf_counter() - begin:.1f} s", flush=True)
    evaluation = ls.compile(ls.evaluation(model, loss), world=world)
    evaluation.state.assign(exe.state)
    others = ls.data.batches(*draw(10 * batch, seed=2), size=batch, world=world)
    return losses, evaluation.evaluate(others)["accuracy"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Trains a small LeNet on synthetic pictures of digits, on the ranks that mpirun, torchrun or `lockstep launch` start.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--batch", type=int, default=64, help="the batch of all ranks together")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the pictures")
    parser.add_argument("--samples", type=int, default=6400, help="number of pictures")
    options = parser.parse_args(arguments)
    world = ls.Communicator.from_environment()
    _, accuracy = train(world, options.batch, options.epochs, options.samples)
    if world.rank == 0:
        print(f"{world.size} rank{'s' if world.size > 1 else ''}, accuracy {accuracy:.4f} over other pictures")


if __name__ == "__main__":
    main()
