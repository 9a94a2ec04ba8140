"""Continues a text with a trained model:

python examples/language/sample.py --model build/language/gpt-trained.onnx --prompt "Shall I compare"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from training_run import start

import lockstep as ls


class Sampler:
    """A model compiled for one text at a time. Each rank may use one by itself.

    Args:
      network: an ONNX file, or the result of `model.gpt`.
      weights: weights by name that replace the file's: `exe.state` of a training step, or `exe.state.averaged()`.

    Raises:
      Error: if the network has other inputs than `tokens`, or no result `logits`.
    """

    def __init__(self, network: Any, weights: Mapping[str, np.ndarray] | None = None) -> None:
        self._model = ls.compile(ls.load_onnx(network, dims={"batch": 1}))
        inputs = {each.name: each.shape for each in self._model.graph.inputs}
        results = [each.name for each in self._model.graph.results]
        if list(inputs) != ["tokens"] or results != ["logits"]:
            raise ls.Error(f"the model makes {results} of {list(inputs)}, expected logits of tokens")
        self._length = inputs["tokens"][1]
        if weights is not None:
            self._model.state.update({name: weights[name] for name in self._model.state})

    def sample(self, prompt: str, count: int, temperature: float = 0.8, seed: int = 0) -> str:
        """Returns the prompt and `count` more bytes. At temperature 0 each is the most probable byte; at 1 it is drawn
        from the model's distribution.

        The model sees a fixed number of previous bytes.

        Raises:
          Error: if the temperature is negative or NaN.
        """
        if not temperature >= 0:
            raise ls.Error(f"the temperature is {temperature}, expected at least 0")
        text = list(prompt.encode())
        random = np.random.Generator(np.random.PCG64(seed))
        for _ in range(count):
            text.append(self._next(text, temperature, random))
        return bytes(text).decode(errors="replace")

    def _next(self, text: list[int], temperature: float, random: np.random.Generator) -> int:
        seen = text[-self._length :] or [ord("\n")]
        tokens = np.zeros((1, self._length), np.int64)  # attention is causal, so padding after the text has no effect
        tokens[0, : len(seen)] = seen
        logits = self._model(tokens=tokens)["logits"][0, :, len(seen) - 1].astype(np.float64)
        if temperature == 0:
            return int(logits.argmax())
        weights = np.exp((logits - logits.max()) / temperature)
        return int(random.choice(len(weights), p=weights / weights.sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="build/language/gpt-trained.onnx", help="a model that train.py wrote")
    parser.add_argument("--prompt", default="\n")
    parser.add_argument("--count", type=int, default=500, help="number of bytes to add")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sampler = Sampler(arguments.model)
    print(sampler.sample(arguments.prompt, arguments.count, arguments.temperature, arguments.seed))


if __name__ == "__main__":
    start(main)
