"""Folders of images, a folder for each class, as a data set; and what files of images have in common with records of them."""

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
    """What `image_folder` returns: a data set of the images below a folder. Threads and processes may read it at once."""

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
        """Of how many parts this is one."""
        return self._num_parts

    def transformed(self, transform: Transform) -> ImageFolder:
        """The same images and classes; `transform(image, index)` gives what a sample has for its image."""
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
    """The images of <path>/<class>/*.jpg, also of .jpeg, .png and .webp, which are read when they are asked for. Needs Pillow.

    Args:
      path: the folder with a folder for each class.
      size: height and width; of an image the middle, brought to that size. None leaves images as they are, and batches need
        images of one size.
      transform: in the place of `size`: transform(image, index) gives what the sample has for the image, beside the class, of an
        RGB image of Pillow and of the sample's number in what is returned, that is, in the part if there are several.
      classes: the names of the folders that count, in the order of the labels; all, sorted, if None.
      num_parts, part_index: into how many parts the images are cut, and which of them is wanted, from 0. They differ by at most
        one image.
      seed: of a shuffle that comes before the cut, the same in all parts; without one a part is of neighbouring classes.

    Returns:
      A data set with a length, whose samples are the image, f32[3, height, width] with values in [0, 1], and its class, i64.

    Raises:
      Error: if there are no such images, or folders that are no class; when it is asked for, if an image cannot be read.

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
    """The RGB image of a file's path or content; `name` is what the error calls it."""
    Image = _pillow(name)
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Error(f"{name}: this is no image that can be read: {error}") from None


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
        raise Error(f"{owner}: size and transform both say what becomes of an image: leave out one")
    if not callable(transform):
        raise Error(f"{owner}: transform is {transform!r}, expected a function of an image and its number")
    return transform


class Pixels:
    """An image as f32[3, height, width] with values in [0, 1]: the whole, or its middle in a size. A class, as processes get it."""

    def __init__(self, size: int | None) -> None:
        self._size = size

    def __call__(self, image: Image.Image, _: int) -> np.ndarray:
        pixels = np.asarray(image if self._size is None else middle(image, self._size))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32) / np.float32(255)


def middle(image: Image.Image, size: int) -> Image.Image:
    """The middle of the image whose shorter side is made 256 for a size of 224, as networks in PyTorch are shown it."""
    side = min(image.size) * 224 / 256
    x, y = ((length - side) / 2 for length in image.size)
    bilinear = _pillow("an image").Resampling.BILINEAR
    return image.resize((size, size), bilinear, box=(x, y, x + side, y + side))
