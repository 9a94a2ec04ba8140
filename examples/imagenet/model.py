"""ResNet (He et al., "Deep residual learning for image recognition", 2016) as an ONNX model, with PyTorch's names:

    python examples/imagenet/model.py --depth 50 --out resnet50.onnx

The stride of a bottleneck is in its 3x3 convolution, and the last normalisation of each block starts at 0, so that a block starts
as the identity (Goyal et al., 2017).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import onnx

sys.path.append(str(Path(__file__).resolve().parents[1]))
from onnx_layers import Network, write

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def _block(net: Network, x: str, name: str, inputs: int, width: int, stride: int, bottleneck: bool) -> str:
    outputs = 4 * width if bottleneck else width
    layers = [(1, 1), (3, stride), (1, 1)] if bottleneck else [(3, stride), (3, 1)]  # kernel and stride of each
    y, channels = x, inputs
    for i, (kernel, step) in enumerate(layers, 1):
        last = i == len(layers)
        y = net.conv(y, f"{name}.conv{i}", channels, outputs if last else width, kernel, step)
        channels = outputs if last else width
        y = net.batch_norm(y, f"{name}.bn{i}", channels, scale=0 if last else 1)
        if not last:
            y = net.op("Relu", y)
    if stride > 1 or inputs != outputs:
        x = net.conv(x, f"{name}.downsample.0", inputs, outputs, 1, stride)
        x = net.batch_norm(x, f"{name}.downsample.1", outputs)
    return net.op("Relu", net.op("Add", x, y))


def resnet(depth: int = 50, classes: int = 1000, size: int = 224, width: int = 64, seed: int = 0) -> onnx.ModelProto:
    """Returns a network from images `image` f32[batch, 3, size, size] to `logits` f32[batch, classes]. `width` is 64 in
    the paper."""
    net = Network(f"resnet{depth}", seed)
    x = net.input("image", (3, size, size))
    x = net.op("Relu", net.batch_norm(net.conv(x, "conv1", 3, width, 7, 2), "bn1", width))
    x = net.max_pool(x, kernel=3, stride=2, padding=1)
    channels, bottleneck = width, depth >= 50
    for stage, blocks in enumerate(BLOCKS[depth]):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _block(net, x, f"layer{stage + 1}.{block}", channels, width << stage, stride, bottleneck)
            channels = (width << stage) * (4 if bottleneck else 1)
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    return net.model(net.linear(x, "fc", channels, classes, deviation=0.01), "logits", (classes,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, choices=BLOCKS, default=50)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    parser.add_argument("--out", type=Path, default=Path("build/resnet.onnx"), help="the file to write")
    arguments = parser.parse_args()
    write(resnet(arguments.depth, arguments.classes, arguments.size, seed=arguments.seed), arguments.out)


if __name__ == "__main__":
    main()
