"""Folders of images, with a folder for each class, as a data set; and the decoding of images, which records use too."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base import checks
from .._base.errors import Error
from ._split import checked_part, rows_of_part

if TYPE_CHECKING:
    from PIL import Image

ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}
Transform = Callable[["Image.Image", int], Any]


class ImageFolder:
    """A data set of the images below a folder, from `image_folder`. Threads and processes may read concurrently."""

    def __init__(
        self, files: Sequence[tuple[Path, int]], classes: Sequence[str], transform: Transform, num_parts: int
    ) -> None:
        self._files, self._classes, self._transform, self._num_parts = list(files), list(classes), transform, num_parts

    @property
    def classes(self) -> list[str]:
        """The names of the classes; a label is a number in this list."""
        return list(self._classes)

    @property
    def num_parts(self) -> int:
        """The number of parts, of which this is one."""
        return self._num_parts

    def transformed(self, transform: Transform) -> ImageFolder:
        """Returns the same data set with the images of samples from `transform(image, index)`."""
        return ImageFolder(self._files, self._classes, transform, self._num_parts)

    def path(self, index: int) -> Path:
        """The file of a sample."""
        return self._files[index][0]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, np.int64]:
        path, label = self._files[index]
        return self._transform(decoded(path, str(path)), index), np.int64(label)


def image_folder(
    path: str | os.PathLike[str],
    size: int | None = None,
    *,
    transform: Transform | None = None,
    classes: Sequence[str] | None = None,
    num_parts: int = 1,
    part_index: int | None = None,
    seed: int | None = None,
) -> ImageFolder:
    """Opens the images <path>/<class>/*.jpg, also .jpeg, .png and .webp. Reads them at access. Needs Pillow.

    Args:
      path: the folder with a folder for each class.
      size: height and width. The middle of an image is scaled to this size. None keeps images as they are, but batches
        need images of one size.
      transform: replaces `size`. transform(image, index) returns the image of a sample, from an RGB image of Pillow and
        the sample's number in the data set (that is, in the part, if there are several).
      classes: the names of the folders to use, in the order of the labels. If None, all, sorted.
      num_parts, part_index: the number of parts, and the part to read, from 0. Parts differ by at most one image.
      seed: of a shuffle before the division, the same in all parts. Without one, a part has images of neighbouring
        classes.

    Returns:
      A data set with a length, whose samples are the image, f32[3, height, width] with values in [0, 1], and its class,
      i64.

    Raises:
      Error: there are no such images, or a folder is not a class. At access if an image cannot be read.

    Example:
      >>> images = lockstep.data.image_folder("/data/flowers/train", size=224)
      >>> for image, label in lockstep.data.batches(images, size=128, world=world, seed=epoch):
      ...     loss = exe(image=image, label=label)["loss"]
    """
    folder = Path(checks.path(path))
    transform = _checked_transform("image_folder", size, transform)
    found = _classes_of(folder)
    names = found if classes is None else checks.names("image_folder: classes", classes)
    unknown = [name for name in found if name not in names]
    if unknown:
        raise Error(f"{folder}/{unknown[0]}: `classes` has no such class")
    files = [
        (file, number)
        for number, name in enumerate(names)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in ENDINGS
    ]
    if not files:
        raise Error(f"{folder}: there are no images; expected {folder}/<class>/*.jpg")
    parts, _ = checked_part("image_folder", num_parts, part_index)
    rows = rows_of_part("image_folder", len(files), num_parts, part_index, seed)
    return ImageFolder([files[row] for row in rows], names, transform, parts)


def _classes_of(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise Error(f"{folder}: there is no such folder")
    names = sorted(each.name for each in folder.iterdir() if each.is_dir())
    if not names:
        raise Error(f"{folder}: there are no folders in it; expected one for each class, with its images")
    return names


def decoded(source: Path | bytes, name: str) -> Image.Image:
    """Returns the RGB image of a file's path or content. `name` is for the error."""
    Image = _pillow(name)
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Error(f"{name}: this is not a readable image: {error}") from None


def _pillow(what: str) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise Error(f"{what}: reading images needs the Python package Pillow") from None
    return Image


def _checked_transform(owner: str, size: int | None, transform: Transform | None) -> Transform:
    if transform is None:
        return Pixels(None if size is None else checks.integer(f"{owner}: size", size, 1))
    if size is not None:
        raise Error(f"{owner}: size and transform both transform an image: leave out one")
    if not callable(transform):
        raise Error(f"{owner}: transform is {transform!r}, expected a function of an image and its number")
    return transform


class Pixels:
    """Converts an image, or its scaled middle, to f32[3, height, width] in [0, 1]. A class, so that it pickles."""

    def __init__(self, size: int | None) -> None:
        self._size = size

    def __call__(self, image: Image.Image, _: int) -> np.ndarray:
        pixels = np.asarray(image if self._size is None else middle(image, self._size))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32) / np.float32(255)


def middle(image: Image.Image, size: int) -> Image.Image:
    """Returns the middle of the image, scaled to `size`. For 224, the shorter side becomes 256, as usual in PyTorch."""
    side = min(image.size) * 224 / 256
    x, y = ((length - side) / 2 for length in image.size)
    bilinear = _pillow("an image").Resampling.BILINEAR
    return image.resize((size, size), bilinear, box=(x, y, x + side, y + side))
