"""Training runs in which PyTorch's autocast and our mixed precision must lose about the same: models, data, steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from made_once import made_once

ROOT = Path(__file__).resolve().parents[2]
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
STEPS = 200
VOCABULARY, TOKENS = 61, 16


@dataclass(frozen=True)
class PrecisionCase:
    name: str
    model: Path
    input: str
    batch: int  # divides among 1, 2 and 3 ranks
    learning_rate: float  # of SGD with momentum 0.9
    precisions: tuple[str, ...]

    @made_once
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples and labels of STEPS batches, read-only. The GPT has a label for each token."""
        import lockstep as ls

        if self.name == "lenet":
            images, labels = ls.data.mnist(FASHION_MNIST)
            return images[: self.batch * STEPS], labels[: self.batch * STEPS]
        # Nine times out of ten, a token is determined by the one before it.
        random = np.random.Generator(np.random.PCG64(7))
        successors = random.permutation(VOCABULARY)
        tokens = random.integers(VOCABULARY, size=(self.batch * STEPS, TOKENS + 1))
        for i in range(1, TOKENS + 1):
            tokens[:, i] = np.where(random.random(len(tokens)) < 0.9, successors[tokens[:, i - 1]], tokens[:, i])
        return tokens[:, :-1], tokens[:, 1:]


CASES = [
    # PyTorch's f16 convolution is slow on CPUs.
    PrecisionCase("lenet", ROOT / "examples/mnist/lenet.onnx", "image", 96, 0.05, ("bf16",)),
    PrecisionCase("gpt", ROOT / "test/models/gpt.onnx", "x", 12, 0.1, ("bf16", "f16")),
]
