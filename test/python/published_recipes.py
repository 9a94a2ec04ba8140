"""Published training recipes on small models: PyTorch's losses over 50 steps.

    python test/python/published_recipes.py   # writes published_recipes.json anew; needs torch and transformers

The models are those of test/models/architectures. The data is made here, for test_published_recipes.py too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import architectures

EXPECTED = Path(__file__).with_name("published_recipes.json")
STEPS, BATCH = 50, 8
WARM_UP = 5

# Recipes and their architectures.
NAMES = {"resnet": "resnet", "bert": "bert", "gpt": "gpt2", "unet": "unet_bilinear", "lstm": "lstm"}
CLASS_WEIGHTS = [0.5, 1.0, 2.0, 1.5]
IGNORED = -100


def batches(name: str) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Inputs and labels of each step: those of the architecture in random order; floats get random noise."""
    _, stored, labels, _ = architectures.read(NAMES[name])
    random = np.random.Generator(np.random.PCG64(7))
    made = []
    for _ in range(STEPS):
        rows = random.integers(0, len(labels), BATCH)
        inputs = {key: value[rows] for key, value in stored.items()}
        for key, value in inputs.items():
            if value.dtype == np.float32:
                inputs[key] = value + 0.3 * random.standard_normal(value.shape, np.float32)
        label = labels[rows].copy()
        if name == "gpt":  # the ends of some sentences are padding
            for row, length in enumerate(random.integers(2, label.shape[1] + 1, BATCH)):
                label[row, length:] = IGNORED
        made.append((inputs, label))
    return made


def decays(ndim: int) -> bool:
    """True if the parameter decays; biases and normalisation parameters, which have one dimension, do not."""
    return ndim > 1


# --- PyTorch's side ----------------------------------------------------------------------------------------------------


def _setup(name: str, module: Any) -> tuple[Any, Any, Any, float | None]:
    """The optimizer, its schedule, the loss, and the limit of the gradients' norm."""
    import torch
    from torch.nn import functional
    from torch.optim import lr_scheduler

    parameters = list(module.parameters())

    def groups(decay: float) -> list[dict[str, Any]]:
        return [
            {"params": [p for p in parameters if decays(p.dim())], "weight_decay": decay},
            {"params": [p for p in parameters if not decays(p.dim())], "weight_decay": 0.0},
        ]

    def warmed(optimizer: Any, rest: Any) -> Any:
        first = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, WARM_UP)
        return lr_scheduler.SequentialLR(optimizer, [first, rest(optimizer)], [WARM_UP])

    left = STEPS - WARM_UP
    if name == "resnet":
        optimizer = torch.optim.SGD(groups(1e-4), 0.02, momentum=0.9, nesterov=True)
        schedule = warmed(optimizer, lambda o: lr_scheduler.CosineAnnealingLR(o, left))
        return optimizer, schedule, lambda y, t: functional.cross_entropy(y, t, label_smoothing=0.1), None
    if name == "bert":
        optimizer = torch.optim.AdamW(groups(0.01), 2e-3)
        schedule = warmed(optimizer, lambda o: lr_scheduler.PolynomialLR(o, left))
        return optimizer, schedule, functional.cross_entropy, 1.0
    if name == "gpt":
        optimizer = torch.optim.AdamW(groups(0.1), 3e-3, betas=(0.9, 0.95))
        schedule = warmed(optimizer, lambda o: lr_scheduler.CosineAnnealingLR(o, left, 3e-4))
        return optimizer, schedule, lambda y, t: functional.cross_entropy(y, t, ignore_index=IGNORED), 1.0
    if name == "unet":
        optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.99)
        weight = torch.tensor(CLASS_WEIGHTS)
        schedule = lr_scheduler.ConstantLR(optimizer, 1.0)
        return optimizer, schedule, lambda y, t: functional.cross_entropy(y, t, weight=weight), None
    assert name == "lstm"
    optimizer = torch.optim.SGD(module.parameters(), 1.0)
    return optimizer, lr_scheduler.StepLR(optimizer, 20, 0.25), functional.cross_entropy, 0.25


def losses(name: str) -> list[float]:
    import torch

    made = architectures.examples().make(NAMES[name])
    module = made.module.eval()
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.train()
    optimizer, schedule, loss_of, limit = _setup(name, module)
    result = []
    for inputs, label in batches(name):
        optimizer.zero_grad()
        output = module(*(torch.from_numpy(value) for value in inputs.values()))
        loss = loss_of(output if isinstance(output, torch.Tensor) else output[0], torch.from_numpy(label))
        loss.backward()
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), limit)
        optimizer.step()
        schedule.step()
        result.append(loss.item())
    return result


def main() -> None:
    expected = {name: losses(name) for name in NAMES}
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
