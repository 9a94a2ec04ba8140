"""Writes the small models of the tests, from PyTorch: mlp.onnx and convnet_bn.onnx, beside this script.

    python test/models/export_models.py [--out test/models]

Needs torch, onnx and onnxscript. Both files are checked in. They come from PyTorch's default exporter, whose files
contain computations on shapes; examples/mnist/lenet.onnx comes from the TorchScript exporter.
"""

import argparse
from pathlib import Path

import onnx
import torch
from torch import nn


class Mlp(nn.Module):
    """Vectors [batch, 12] to the logits [batch, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(12, 16)
        self.fc2 = nn.Linear(16, 8)
        self.fc3 = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class ConvNetBn(nn.Module):
    """Images [batch, 3, 8, 8] to the logits [batch, 4], with batch normalisation in training form."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(image)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean(dim=(2, 3)))


def export(model: nn.Module, example: torch.Tensor, name: str, folder: Path) -> None:
    """Writes `folder`/`name`.onnx. The input has the name of forward's argument, the output is `logits`."""
    path = folder / f"{name}.onnx"
    input_name = model.forward.__code__.co_varnames[1]
    torch.onnx.export(
        model,
        (example,),
        path,
        input_names=[input_name],
        output_names=["logits"],
        dynamic_shapes={input_name: {0: torch.export.Dim("batch")}},
        dynamo=True,
        external_data=False,
        optimize=False,  # else batch normalisation is folded into the convolutions
        verbose=False,
    )
    exported = onnx.load(path)
    exported.graph.name = name
    # Removes source lines and folders of the exporting machine. Keeps which values are parameters.
    for part in [exported.graph, *exported.graph.node, *exported.graph.value_info, *exported.graph.initializer]:
        kept = [each for each in part.metadata_props if each.key.endswith(".InputSpec.kind")]
        part.ClearField("metadata_props")
        part.metadata_props.extend(kept)
    onnx.checker.check_model(exported)
    onnx.save(exported, path)


def export_all(folder: Path) -> dict[str, nn.Module]:
    """Writes every model. Returns the models by name, with the parameters that the files contain."""
    torch.manual_seed(2)
    mlp = Mlp()
    export(mlp, torch.zeros(3, 12), "mlp", folder)
    torch.manual_seed(3)
    convnet_bn = ConvNetBn().train()
    export(convnet_bn, torch.randn(3, 3, 8, 8), "convnet_bn", folder)
    return {"mlp": mlp, "convnet_bn": convnet_bn}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for the files")
    export_all(parser.parse_args().out)


if __name__ == "__main__":
    main()
