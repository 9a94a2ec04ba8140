"""A data set of images in one folder for each class, and threads that read it ahead."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import lockstep as ls

# Statistics of ImageNet's pixels for each channel, as used for networks in PyTorch.
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


class Images:
    """The images of <folder>/<class>/*.jpg, f32[3, size, size], each with the number of its class, i64.

    An image is the middle of its file; `drawn` returns random parts instead.

    Args:
      classes: the classes to use, in this order; all if None.

    Raises:
      Error: if the folder has no such image, or has other classes; and when an image is indexed that cannot be read.
    """

    def __init__(self, folder: Path, classes: list[str] | None, size: int) -> None:
        self._images = ls.data.image_folder(folder, size, classes=classes)
        self._size = size

    @property
    def classes(self) -> list[str]:
        """The names of the classes. The number of a class is its index in this list."""
        return self._images.classes

    def drawn(self, *draw: int) -> Images:
        """Returns a data set of the same files with a random part of each image, mirrored or not, for training (Szegedy
        et al., 2015). The part depends only on the numbers `draw`, such as a seed and the epoch, and on the index of
        the image."""

        def pixels(image: Image.Image, index: int) -> np.ndarray:
            image = _drawn(image, self._size, np.random.Generator(np.random.PCG64([*draw, index])))
            return (np.asarray(image, np.float32) / 255).transpose(2, 0, 1)

        images = copy.copy(self)
        images._images = self._images.transformed(pixels)
        return images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        pixels, label = self._images[index]
        return (pixels - MEAN[:, None, None]) / DEVIATION[:, None, None], label


def _drawn(image: Image.Image, size: int, random: np.random.Generator) -> Image.Image:
    """Returns a part of 8 % to 100 % of the image's area, 3/4 to 4/3 times as wide as high, and mirrored half the
    time."""
    mirrored = random.random() < 0.5
    box = _part(*image.size, random)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image


def _part(width: int, height: int, random: np.random.Generator) -> tuple[float, float, float, float]:
    for _ in range(10):
        area = random.uniform(0.08, 1) * width * height
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if w <= width and h <= height:
            x, y = random.uniform(0, width - w), random.uniform(0, height - h)
            return x, y, x + w, y + h
    w, h = min(width, height * 4 / 3), min(height, width * 4 / 3)  # for images that are much longer than wide
    return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2


def read_ahead(
    samples: Any, batches: Iterable[tuple[np.ndarray, ...]], threads: int, ahead: int = 3
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields the samples for batches of their indices, with the other parts of each batch. Reads `ahead` batches in
    advance.

    Pillow reads files and resizes images without Python's lock, so threads are enough.
    """
    pool = ThreadPoolExecutor(threads)
    waiting: deque[tuple[list[Future[Any]], list[np.ndarray]]] = deque()

    def next_batch() -> tuple[np.ndarray, ...]:
        futures, rest = waiting.popleft()
        parts = zip(*(future.result() for future in futures), strict=True)
        return (*(np.stack(part) for part in parts), *rest)

    try:
        for numbers, *rest in batches:
            waiting.append(([pool.submit(samples.__getitem__, int(number)) for number in numbers], rest))
            if len(waiting) > ahead:
                yield next_batch()
        while waiting:
            yield next_batch()
    finally:
        pool.shutdown(cancel_futures=True)
