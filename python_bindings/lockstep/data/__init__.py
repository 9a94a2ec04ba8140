"""Data sets, and their division among the ranks.

There are two ways. `batches(..., world=world)` takes the whole data set on every rank and divides each global batch, so
that a batch has the same samples on any number of ranks. Or each rank reads only its part of the data set: every reader
has `num_parts` and `part_index`, and `SplitSampler` divides numbers of samples.
"""

from __future__ import annotations

from .._base import names
from ._batches import Batches, Dataset, batches
from ._idx import load_idx, mnist
from ._image_folder import ImageFolder, image_folder
from ._recordio import ImageRecords, RecordHeader, Records, image_records, records
from ._split import SplitSampler

__all__ = [
    "Batches", "Dataset", "ImageFolder", "ImageRecords", "RecordHeader", "Records", "SplitSampler",
    "batches", "image_folder", "image_records", "load_idx", "mnist", "records",
]  # fmt: skip

names.guard(
    globals(),
    {
        "dataloader": "batches",
        "distributedsampler": "SplitSampler",
        "imagefolderdataset": "image_folder",
        "imagerecorditer": "image_records",
        "mnistiter": "mnist",
        "ndarrayiter": "batches",
        "tensordataset": "batches",
    },
)
