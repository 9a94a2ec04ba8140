"""PyTorch's numbers on the recipes of test_recipes.py: `python test/python/pytorch_recipes.py` writes
pytorch_recipes.json.

Needs torch and onnx. A recipe is the part of a step beside loss and optimizer: parameter groups, clipping, averages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

HERE = Path(__file__).parent
EXPECTED = HERE / "pytorch_recipes.json"
STEPS, BATCH = 12, 12
COMPARED = ("fc1.bias", "fc2.weight", "fc3.bias")


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.Generator(np.random.PCG64(3))
    return [
        (random.standard_normal((BATCH, 12)).astype(np.float32), random.integers(0, 5, BATCH)) for _ in range(STEPS)
    ]


def module() -> torch.nn.Module:
    made = torch.nn.Sequential()
    for i, (inner, outer) in enumerate([(12, 16), (16, 8), (8, 5)], 1):
        made.add_module(f"fc{i}", torch.nn.Linear(inner, outer))
        if i < 3:
            made.add_module(f"relu{i}", torch.nn.ReLU())
    stored = onnx.load(HERE.parent / "models/mlp.onnx").graph.initializer
    made.load_state_dict({each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in stored})
    return made


def compared(made: torch.nn.Module) -> dict[str, Any]:
    return {name: made.state_dict()[name].tolist() for name in COMPARED}


Optimizers = Callable[[torch.nn.Module], list[torch.optim.Optimizer]]


def train(
    optimizers: Optimizers,
    clip: Callable[[list[torch.nn.Parameter]], Any] | None = None,
    average: Callable[[torch.nn.Module], AveragedModel] | None = None,
    updates: Callable[[int], bool] = lambda step: True,
) -> dict[str, Any]:
    made = module()
    averaged = average(made) if average else None
    all_optimizers, losses, norms = optimizers(made), [], []
    for step, (x, label) in enumerate(batches()):
        made.zero_grad()
        loss = torch.nn.functional.cross_entropy(made(torch.from_numpy(x)), torch.from_numpy(label))
        loss.backward()
        if clip:
            norms.append(clip(list(made.parameters())))
        for optimizer in all_optimizers:
            optimizer.step()
        if averaged and updates(step):
            averaged.update_parameters(made)
        losses.append(loss.item())
    result = {"losses": losses, "states": compared(made)}
    if averaged:
        result["averages"] = compared(averaged.module)
    if norms and norms[0] is not None:
        result["norms"] = [norm.item() for norm in norms]
    return result


def sgd(made: torch.nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(made.parameters(), 0.5, momentum=0.9)]


def of_groups(made: torch.nn.Module) -> list[torch.optim.Optimizer]:
    named = dict(made.named_parameters())
    biases = [value for name, value in named.items() if name.endswith(".bias")]
    return [
        torch.optim.SGD(biases, 0.2),
        torch.optim.AdamW([named["fc2.weight"]], 0.05),
        torch.optim.SGD([named["fc1.weight"], named["fc3.weight"]], 0.1, momentum=0.9, weight_decay=0.01),
    ]


def clip_each(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        torch.nn.utils.clip_grad_norm_([parameter], 0.1)


def main() -> None:
    utils = torch.nn.utils
    results = {
        "groups": train(of_groups),
        "value": train(sgd, lambda parameters: utils.clip_grad_value_(parameters, 0.02)),
        "norm": train(sgd, clip_each),
        "global_norm": train(sgd, lambda parameters: utils.clip_grad_norm_(parameters, 0.3)),
        "exponential": train(sgd, None, lambda made: AveragedModel(made, multi_avg_fn=get_ema_multi_avg_fn(0.9))),
        "stochastic": train(sgd, None, AveragedModel, lambda step: step >= 4 and (step - 4) % 3 == 0),
    }
    EXPECTED.write_text(json.dumps(results) + "\n")
    print(f"wrote {EXPECTED}, from PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
