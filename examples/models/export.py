"""Exports the architectures of this folder to ONNX, as users would.

    python examples/models/export.py --out /tmp/models                    # all, by torch.export
    python examples/models/export.py --out /tmp/models --how torchscript resnet lstm

Needs torch 2.13, onnx and onnxscript. Skips the architectures of transformers (5.23) if it is not installed. Writes
<name>.<how>.onnx, with `batch` as the symbolic dimension of each input.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from registry import EXAMPLES, Example, make

for module in ("vision", "sequence", "attention", "hugging_face", "other"):
    if module != "hugging_face" or importlib.util.find_spec("transformers") is not None:
        importlib.import_module(module)  # adds its examples to the registry

HOW = ("export", "optimized", "torchscript")


def export(made: Example, path: Path, how: str) -> None:
    """Exports the example's module; `how` is one of HOW."""
    training = torch.onnx.TrainingMode.PRESERVE
    names = list(made.inputs)
    batch = [name for name in names if name not in made.fixed]
    common: dict[str, Any] = {"input_names": names, "output_names": ["output"], "external_data": False}
    if how == "torchscript":
        axes = {name: {0: "batch"} for name in batch}
        torch.onnx.export(
            made.module, tuple(made.inputs.values()), path, dynamo=False, dynamic_axes=axes, training=training,
            do_constant_folding=False, opset_version=18, **common,
        )  # fmt: skip
        return
    dim = torch.export.Dim("batch", min=2)
    shapes = {name: {0: dim} if name in batch else {} for name in names}
    torch.onnx.export(
        made.module,
        tuple(made.inputs.values()),
        path,
        dynamo=True,
        dynamic_shapes=shapes,
        optimize=how == "optimized",
        **common,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="examples to export (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--how", choices=HOW, default="export")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or EXAMPLES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export(make(name), options.out / f"{name}.{options.how}.onnx", options.how)
    print(f"{len(options.names or EXAMPLES)} exported")
    return 0


if __name__ == "__main__":
    sys.exit(main())
