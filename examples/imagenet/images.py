"""A folder of images, a folder for each class, as a data set; and threads that read it ahead."""

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

ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}
MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet's pixels, which networks in PyTorch are given so too
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


def classes_of(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted: a class is its number in this list."""
    if not folder.is_dir():
        raise ls.Error(f"{folder}: there is no such folder")
    names = sorted(each.name for each in folder.iterdir() if each.is_dir())
    if not names:
        raise ls.Error(f"{folder}: there are no folders in it; expected one for each class, with its images")
    return names


class Images:
    """The images of <folder>/<class>/*.jpg: f32[3, size, size], and the number of the class, i64.

    Each is the middle of its file, until `drawn` says otherwise.

    Args:
      classes: whose images count, in this order.

    Raises:
      Error: if the folder has no such image, or is of other classes; and, for an image that cannot be read, when it is asked for.
    """

    def __init__(self, folder: Path, classes: list[str], size: int) -> None:
        unknown = [name for name in classes_of(folder) if name not in classes]
        if unknown:
            raise ls.Error(f"{folder}/{unknown[0]}: the training set has no such class")
        self._files = [
            (file, number)
            for number, name in enumerate(classes)
            for file in sorted((folder / name).glob("*"))
            if file.suffix.lower() in ENDINGS
        ]
        if not self._files:
            raise ls.Error(f"{folder}: there are no images; expected {folder}/<class>/*.jpg")
        self._size = size
        self._draw: tuple[int, ...] | None = None

    def drawn(self, *draw: int) -> Images:
        """The same files, but of each a random part, mirrored or not, as training wants it (Szegedy et al., 2015). Which part depends
        on these numbers, such as a seed and the epoch, and on the image's number alone."""
        images = copy.copy(self)
        images._draw = draw
        return images

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        file, label = self._files[index]
        try:
            with Image.open(file) as opened:
                image = opened.convert("RGB")
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise ls.Error(f"{file}: this is no image that can be read: {error}") from None
        if self._draw is None:
            image = _middle(image, self._size)
        else:
            image = _drawn(image, self._size, np.random.Generator(np.random.PCG64([*self._draw, index])))
        pixels = (np.asarray(image, np.float32) / 255 - MEAN) / DEVIATION
        return pixels.transpose(2, 0, 1), np.int64(label)


def _middle(image: Image.Image, size: int) -> Image.Image:
    """The middle of the image whose shorter side is made 256 for a size of 224."""
    side = min(image.size) * 224 / 256
    x, y = ((length - side) / 2 for length in image.size)
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(x, y, x + side, y + side))


def _drawn(image: Image.Image, size: int, random: np.random.Generator) -> Image.Image:
    """A part of 8 % to 100 % of the image, 3/4 to 4/3 times as wide as high, and mirrored half the time."""
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
    w, h = min(width, height * 4 / 3), min(height, width * 4 / 3)  # of an image that is much longer than wide
    return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2


def read_ahead(
    samples: Any, batches: Iterable[tuple[np.ndarray, ...]], threads: int, ahead: int = 3
) -> Iterator[tuple[np.ndarray, ...]]:
    """For batches of numbers of samples, the samples, and what else is in the batch. So many batches are read before they are wanted.

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
