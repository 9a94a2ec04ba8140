"""A data set for segmentation that needs no files: circles, squares and triangles of random colours, with noise."""

from __future__ import annotations

import numpy as np

CLASSES = ("background", "circle", "square", "triangle")


class Shapes:
    """Images f32[3, size, size] and the class of each pixel, i64[size, size]. A sample depends only on the seed and its
    index.

    An image has one to four shapes; later ones cover earlier ones. Colours are independent of the class.
    """

    def __init__(self, count: int, size: int, seed: int) -> None:
        self._count, self._size, self._seed = count, size, seed
        self._y, self._x = np.mgrid[:size, :size].astype(np.float32)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.Generator(np.random.PCG64([self._seed, index]))
        colour = random.uniform(-1, 1, 3)
        image = np.broadcast_to(colour[:, None, None], (3, self._size, self._size)).astype(np.float32)
        label = np.zeros((self._size, self._size), np.int64)
        for _ in range(random.integers(1, 5)):
            kind = int(random.integers(1, len(CLASSES)))
            inside = self._inside(kind, random)
            image[:, inside] = random.uniform(-1, 1, (3, 1))
            label[inside] = kind
        image += 0.1 * random.standard_normal(image.shape, np.float32)
        return image, label

    def _inside(self, kind: int, random: np.random.Generator) -> np.ndarray:
        """Returns a mask of the pixels of a shape with a random place, size and angle."""
        x0, y0 = random.uniform(0.15, 0.85, 2) * self._size
        radius = random.uniform(0.12, 0.3) * self._size
        angle = random.uniform(0, 2 * np.pi)
        x, y = self._x - x0, self._y - y0
        if kind == 1:
            return x**2 + y**2 < radius**2
        # A point is inside a polygon if its distance along the normal of each side is below the inner radius.
        sides = 4 if kind == 2 else 3
        directions = angle + 2 * np.pi * np.arange(sides) / sides
        distance = np.max([x * np.cos(a) + y * np.sin(a) for a in directions], axis=0)
        return distance < radius * np.cos(np.pi / sides)
