"""Writes lenet.onnx, the model that train.py trains: the LeNet of MXNet's tutorial, in PyTorch.

    python examples/mnist/export_lenet.py [--out examples/mnist/lenet.onnx]

Needs torch and onnx. The file is checked in, so training does not need PyTorch.
"""

import argparse
from pathlib import Path

import torch
from torch import nn


class LeNet(nn.Module):
    """Maps images [batch, 1, 28, 28] to the logits [batch, 10] of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, kernel_size=5)
        self.conv2 = nn.Conv2d(20, 50, kernel_size=5)
        self.fc1 = nn.Linear(50 * 4 * 4, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.tanh(self.conv1(image)), 2, stride=2)
        x = nn.functional.max_pool2d(torch.tanh(self.conv2(x)), 2, stride=2)
        x = torch.tanh(self.fc1(torch.flatten(x, 1)))
        return self.fc2(x)


def export(path: Path, seed: int = 1) -> LeNet:
    """Writes the model with parameters drawn from `seed`, and returns it."""
    import onnx  # not needed for the module alone

    torch.manual_seed(seed)
    model = LeNet()
    # The TorchScript exporter names nodes after modules (/conv1/Conv), and messages use these names.
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, 28, 28),),
        str(path),
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        dynamo=False,
        do_constant_folding=False,
    )
    exported = onnx.load(path)
    exported.graph.name = "lenet"
    for initializer in exported.graph.initializer:  # the mark of PyTorch's other exporter for parameters
        onnx.helper.set_metadata_props(initializer, {"pkg.torch.export.graph_signature.InputSpec.kind": "PARAMETER"})
    onnx.checker.check_model(exported, full_check=True)
    onnx.save(exported, path)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("lenet.onnx"), help="the file to write")
    export(parser.parse_args().out)


if __name__ == "__main__":
    main()
