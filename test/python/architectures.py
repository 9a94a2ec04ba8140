"""Two steps of SGD of popular architectures, in PyTorch and here from their exported files, with the same initial
weights.

    python test/python/architectures.py [NAME...]   # writes test/models/architectures/ anew; torch, onnxscript, transformers

For each architecture of examples/models the folder has its ONNX files, without metadata that no importer reads, and
PyTorch's numbers in f64. It also has the errors of PyTorch's f32, which set the tolerance: a network with batch
normalisation over few values amplifies every rounding.
"""

from __future__ import annotations

import gzip
import importlib
import json
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "test/models/architectures"
HOW = ("export", "optimized", "torchscript")
# Architectures that the older exporter exports too: one of each kind that it can export.
BY_THE_OLDER = ("resnet", "vgg_bn", "unet_bilinear", "vit", "bert", "swin", "t5", "llama", "lstm_stacked_both_ways")
RATE = 1.0  # subtracts the gradient itself, so that its errors show beside the weights


@dataclass(frozen=True)
class Numbers:
    """The results of two steps: the loss of each, and every parameter after the first, with the errors of PyTorch's
    f32.
    """

    losses: list[float]
    loss_errors: list[float]
    parameters: dict[str, np.ndarray]
    parameter_errors: dict[str, float]  # the largest error of an element


def names() -> list[str]:
    return sorted({path.name.split(".")[0] for path in FOLDER.glob("*.npz")})


def files() -> list[str]:
    """The exported files, as "<name>.<how>"."""
    return sorted(path.name.removesuffix(".onnx.gz") for path in FOLDER.glob("*.onnx.gz"))


def model_bytes(file: str) -> bytes:
    return gzip.decompress((FOLDER / f"{file}.onnx.gz").read_bytes())


def read(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray], np.ndarray, Numbers]:
    """Returns the program's description (loss, inputs without a batch), the inputs, the labels or targets, and
    PyTorch's numbers.
    """
    with np.load(FOLDER / f"{name}.npz") as stored:
        arrays = dict(stored)
    about = json.loads(str(arrays["about"]))
    of = lambda kind: {key.removeprefix(kind): value for key, value in arrays.items() if key.startswith(kind)}
    numbers = Numbers(about["losses"], about["loss_errors"], of("parameter/"), about["parameter_errors"])
    return about, of("input/"), arrays["label"], numbers


# --- PyTorch's side. Only this part needs torch. --------------------------------------------------------------------


def examples() -> Any:
    """The package of examples/models, with all its architectures."""
    sys.path.insert(0, str(ROOT / "examples/models"))
    try:
        return importlib.import_module("export")
    finally:
        sys.path.pop(0)


def _steps(made: Any, dtype: Any, channels_last: bool) -> tuple[list[float], dict[str, np.ndarray]]:
    import copy

    import torch

    module = copy.deepcopy(made.module).to(dtype)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    module.eval()
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.train()
    inputs = [_in(value, dtype, channels_last) for value in made.inputs.values()]
    target = _in(made.target, dtype, False)
    losses, after = [], {}
    parameters = dict(module.named_parameters())
    for _ in range(2):
        output = module(*inputs)
        output = output if isinstance(output, torch.Tensor) else output[0]
        if made.loss == "cross_entropy":
            loss = torch.nn.functional.cross_entropy(output, target)
        else:
            loss = torch.nn.functional.mse_loss(output, target)
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                if gradient is not None:
                    parameter -= RATE * gradient
        losses.append(loss.item())
        after = after or {name: value.detach().double().numpy().copy() for name, value in parameters.items()}
    return losses, after


def _in(value: Any, dtype: Any, channels_last: bool) -> Any:
    import torch

    value = value.to(dtype) if value.is_floating_point() else value
    return value.contiguous(memory_format=torch.channels_last) if channels_last and value.dim() == 4 else value


def pytorch(made: Any) -> Numbers:
    """Computes an example in f64, and in f32 in both memory formats, of which the smaller error counts."""
    import torch

    losses, parameters = _steps(made, torch.float64, False)
    loss_errors: list[list[float]] = []
    errors: list[dict[str, float]] = []
    for channels_last in (False, True):
        found, after = _steps(made, torch.float32, channels_last)
        loss_errors.append([abs(a - b) for a, b in zip(found, losses, strict=True)])
        errors.append({name: float(np.abs(after[name] - value).max(initial=0)) for name, value in parameters.items()})
    return Numbers(
        losses,
        [min(of) for of in zip(*loss_errors, strict=True)],
        parameters,
        {name: min(of[name] for of in errors) for name in parameters},
    )


def exported(made: Any, how: str) -> Any:
    """The example's ONNX file, without the locations in PyTorch's source, which are most of it."""
    import onnx

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        examples().export(made, path, how)
        model = onnx.load(path)
    graph = model.graph
    nodes = [*graph.node, *(node for function in model.functions for node in function.node)]
    for item in [graph, *nodes, *graph.input, *graph.output, *graph.initializer]:
        del item.metadata_props[:]
        item.doc_string = ""
    del graph.value_info[:]
    return model


def _normalisations(made: Any) -> int:
    import torch

    return sum(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in made.module.modules())


def _shares_parameters(made: Any) -> bool:
    return len(list(made.module.parameters())) < len(list(made.module.named_parameters(remove_duplicate=False)))


def write(name: str) -> None:
    made = examples().make(name)
    numbers = pytorch(made)
    about = {
        "loss": made.loss,
        "fixed": sorted(made.fixed),
        "losses": numbers.losses,
        "loss_errors": numbers.loss_errors,
        "parameter_errors": numbers.parameter_errors,
    }
    arrays = {f"input/{key}": value.numpy() for key, value in made.inputs.items()}
    arrays |= {f"parameter/{key}": value for key, value in numbers.parameters.items()}
    np.savez_compressed(FOLDER / f"{name}.npz", about=json.dumps(about), label=made.target.numpy(), **arrays)
    for how in HOW:
        path = FOLDER / f"{name}.{how}.onnx.gz"
        path.unlink(missing_ok=True)
        if how == "torchscript" and name not in BY_THE_OLDER:
            continue
        try:
            model = exported(made, how)
        except Exception as error:  # noqa: BLE001 (exporters raise anything)
            print(f"{name}: {how}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
            continue
        if lost := _normalisations(made) - sum(node.op_type == "BatchNormalization" for node in model.graph.node):
            # The exporter folds them into the preceding convolutions, even in training mode.
            print(f"{name}: {how}: without {lost} batch normalisations, so it cannot train as it does in PyTorch")
            continue
        if how == "optimized" and _shares_parameters(made):
            print(f"{name}: {how}: its shared parameters are several now, so it cannot train as it does in PyTorch")
            continue
        path.write_bytes(gzip.compress(model.SerializeToString(), mtime=0))


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or examples().EXAMPLES:
        write(name)
        print(name, flush=True)


if __name__ == "__main__":
    main()
