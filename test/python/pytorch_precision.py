"""PyTorch's losses on the runs of precision_cases.py, in f32 and with autocast: writes pytorch_precision.json beside
it.

    python test/python/pytorch_precision.py [NAME...]   # by hand; torch, onnx, and lockstep for the data

The GPT is a smaller one of benchmarks/networks.py; it is written to test/models/gpt.onnx if that does not exist. f16 is
trained with torch.amp.GradScaler.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from precision_cases import CASES, ROOT, STEPS, TOKENS, VOCABULARY, PrecisionCase

sys.path += [str(ROOT / "examples/mnist"), str(ROOT / "benchmarks")]
from export_lenet import LeNet
from networks import Gpt

EXPECTED = Path(__file__).with_name("pytorch_precision.json")
DTYPES = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}


def gpt() -> torch.nn.Module:
    return Gpt(vocabulary=VOCABULARY, width=32, heads=4, layers=2, tokens=TOKENS)


def export_gpt(path: Path) -> None:
    torch.manual_seed(0)
    module = gpt()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))  # equal parameters would become one initializer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            (torch.zeros(2, TOKENS, dtype=torch.int64),),
            path,
            dynamo=False,
            do_constant_folding=False,  # so that weights keep their names
            opset_version=17,
            input_names=["x"],
            output_names=["logits"],
            dynamic_axes={"x": {0: "batch"}},
        )


def load(case: PrecisionCase) -> torch.nn.Module:
    module: torch.nn.Module = LeNet() if case.name == "lenet" else gpt()
    stored = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in onnx.load(case.model).graph.initializer
    }
    missing = [name for name, _ in module.named_parameters() if name not in stored]
    assert not missing, f"{case.model} has no initializers {missing}"
    module.load_state_dict({name: stored.get(name, value) for name, value in module.state_dict().items()})
    return module.train()


def losses(case: PrecisionCase, data: tuple[np.ndarray, np.ndarray], precision: str) -> list[float]:
    module = load(case)
    optimizer = torch.optim.SGD(module.parameters(), case.learning_rate, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "f16")
    samples, labels = (torch.from_numpy(np.ascontiguousarray(array)) for array in data)
    dtype: Any = DTYPES[precision]
    result = []
    for step in range(STEPS):
        rows = slice(step * case.batch, (step + 1) * case.batch)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            logits = module(samples[rows])
            loss = torch.nn.functional.cross_entropy(logits.float(), labels[rows].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        result.append(loss.item())
    return result


def main() -> None:
    for case in CASES:
        if case.name == "gpt" and not case.model.exists():
            export_gpt(case.model)
    numbers = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    for case in CASES:
        if sys.argv[1:] and case.name not in sys.argv[1:]:
            continue
        data = case.data()
        runs = {precision: losses(case, data, precision) for precision in ("f32", *case.precisions)}
        numbers[case.name] = {precision: [float(f"{loss:.7g}") for loss in run] for precision, run in runs.items()}
        for precision, run in runs.items():
            error = np.abs(np.subtract(run, runs["f32"])).mean()
            print(
                f"{case.name} in {precision}: {run[0]:.4f} to {np.mean(run[-10:]):.4f}, {error:.2g} from f32",
                flush=True,
            )
        EXPECTED.write_text(json.dumps(numbers) + "\n")
    print(f"wrote {EXPECTED}, from PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
