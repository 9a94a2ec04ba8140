"""PyTorch's losses on the runs of cases.py: `python test/python/pytorch_oracle.py` writes pytorch_losses.json beside
it.

Needs torch, onnx and the package lockstep (for the data). The models are PyTorch's own modules with the parameters of
the ONNX files, trained on the whole batch in one process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper

from cases import BATCH, CASES, ROOT, STEPS, Case

sys.path += [str(ROOT / "examples/mnist"), str(ROOT / "test/models")]
from export_lenet import LeNet
from export_models import ConvNetBn, Mlp

EXPECTED = Path(__file__).with_name("pytorch_losses.json")


def load_module(case: Case) -> torch.nn.Module:
    module = {"lenet": LeNet, "mlp": Mlp, "convnet_bn": ConvNetBn}[case.name]()
    stored = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in onnx.load(case.model).graph.initializer
    }
    parameters = {name: stored.get(name, value) for name, value in module.state_dict().items()}
    missing = [name for name, _ in module.named_parameters() if name not in stored]
    assert not missing, f"{case.model} has no initializers {missing}"
    module.load_state_dict(parameters)
    return module.train()


def make_optimizer(case: Case, module: torch.nn.Module) -> torch.optim.Optimizer:
    o = case.optimizer
    if type(o).__name__ == "SGD":
        return torch.optim.SGD(
            module.parameters(), o.learning_rate, o.momentum, weight_decay=o.weight_decay, nesterov=o.nesterov
        )
    kind = getattr(torch.optim, type(o).__name__)
    return kind(module.parameters(), o.learning_rate, (o.beta1, o.beta2), o.epsilon, o.weight_decay)


def losses(case: Case, steps: int = STEPS) -> list[float]:
    module = load_module(case)
    optimizer = make_optimizer(case, module)
    samples, labels = (torch.from_numpy(array) for array in case.data())
    result = []
    for step in range(steps):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(samples[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def main() -> None:
    EXPECTED.write_text(json.dumps({case.name: losses(case) for case in CASES}, indent=1) + "\n")
    print(f"wrote {EXPECTED}, from PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
