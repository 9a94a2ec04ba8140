"""One rank of test_horovod_torch: runs all cases of lockstep.horovod.torch.

    mpi_horovod.py FOLDER

Writes the number of ranks and the cases that passed to <folder>/<rank>.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import horovod_calls  # noqa: F401  (its cases)
import horovod_training  # noqa: F401
import lockstep.horovod.torch as hvd
from horovod_support import CASES, RANK, SIZE, errs


def main() -> None:
    torch.set_num_threads(1)
    for each in CASES:
        each()
    hvd.barrier()
    (Path(sys.argv[1]) / str(RANK)).write_text(f"{SIZE} {' '.join(each.__name__ for each in CASES)}")
    hvd.shutdown()
    assert not hvd.is_initialized()
    errs("hvd.init() has not been called", hvd.rank)


if __name__ == "__main__":
    main()
