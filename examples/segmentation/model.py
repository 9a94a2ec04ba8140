"""A U-Net (Ronneberger et al., "U-Net: convolutional networks for biomedical image segmentation", 2015) as an ONNX model:

    python examples/segmentation/model.py --width 16 --out unet.onnx

Unlike in the paper, convolutions are padded, so that the result has the size of the image, and normalised.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import onnx

sys.path.append(str(Path(__file__).resolve().parents[1]))
from onnx_layers import Network, write


def _two_convolutions(net: Network, x: str, name: str, inputs: int, outputs: int) -> str:
    for i, channels in ((1, inputs), (2, outputs)):
        x = net.conv(x, f"{name}.conv{i}", channels, outputs, 3, fan="in")
        x = net.op("Relu", net.batch_norm(x, f"{name}.bn{i}", outputs))
    return x


def unet(classes: int = 4, size: int = 64, width: int = 16, depth: int = 3, seed: int = 0) -> onnx.ModelProto:
    """Returns a network from images `image` f32[batch, 3, size, size] to `logits` f32[batch, classes, size, size].

    Each of `depth` levels halves the image and doubles the channels, which are `width` at first. The paper has width
    64, depth 4.
    """
    if size % (1 << depth) != 0:
        raise ValueError(f"images of {size} x {size} cannot be halved {depth} times: not a multiple of {1 << depth}")
    net = Network("unet", seed)
    x = net.input("image", (3, size, size))
    channels, left = 3, []
    for level in range(depth):
        x = _two_convolutions(net, x, f"down{level + 1}", channels, width << level)
        channels = width << level
        left.append(x)
        x = net.max_pool(x, kernel=2, stride=2)
    x = _two_convolutions(net, x, "bottom", channels, width << depth)
    for level in reversed(range(depth)):
        channels = width << level
        x = net.conv_transpose(x, f"up{level + 1}.up", 2 * channels, channels)
        x = net.op("Concat", left[level], x, axis=1)
        x = _two_convolutions(net, x, f"up{level + 1}", 2 * channels, channels)
    return net.model(net.conv(x, "head", width, classes, 1, bias=True, fan="in"), "logits", (classes, size, size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option, value in {"classes": 4, "size": 64, "width": 16, "depth": 3, "seed": 0}.items():
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--out", type=Path, default=Path("build/unet.onnx"), help="the file to write")
    chosen = vars(parser.parse_args())
    path = chosen.pop("out")
    write(unet(**chosen), path)


if __name__ == "__main__":
    main()
