"""Writes Fashion-MNIST as folders of images, in place of ImageNet:

python examples/imagenet/fashion_mnist.py --out build/fashion-mnist
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

import lockstep as ls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="the four files of MNIST's format")
    parser.add_argument("--train", type=int, default=8000, help="number of training images")
    parser.add_argument("--val", type=int, default=2000, help="number of validation images")
    parser.add_argument("--out", type=Path, default=Path("build/fashion-mnist"))
    arguments = parser.parse_args()
    for part, count in (("train", arguments.train), ("val", arguments.val)):
        images, labels = ls.data.mnist(arguments.data, train=part == "train")
        for i, (image, label) in enumerate(zip(images[:count], labels[:count], strict=True)):
            file = arguments.out / part / str(label) / f"{i:05d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.round(image[0] * 255).astype(np.uint8)).save(file)
    print(f"wrote {arguments.out}/train/<class>/*.png and {arguments.out}/val/<class>/*.png")


if __name__ == "__main__":
    main()
