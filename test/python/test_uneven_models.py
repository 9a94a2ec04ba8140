"""The networks of the examples on MPI ranks with different numbers of rows: a step is that of one rank with all rows.

The networks are small ones (uneven_models.py), because the expensive parts do not differ between ranks.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from ranks import mpirun
from uneven_models import NETWORKS, SHARES, compiled, data, start

HERE = Path(__file__).parent
TOLERANCE, ROUNDING = 2e-3, 2e-6  # relative to the distance that a state moved, and to its largest element


@functools.cache
def alone(name: str, rows: int) -> tuple[float, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The loss of a step of one rank with these rows, and its states before and after."""
    exe = compiled(NETWORKS[name], ls.Communicator.single(), rows, uneven=False)
    start(exe)
    before = dict(exe.state)
    loss = float(exe(**data(NETWORKS[name], rows))["loss"])
    return loss, before, dict(exe.state)


@pytest.mark.parametrize("ranks", SHARES)
def test_a_step_is_that_of_one_rank_with_all_rows(ranks: int, tmp_path: Path) -> None:
    done = mpirun(ranks, HERE / "mpi_uneven.py", tmp_path, *NETWORKS)
    assert done.returncode == 0, done.stderr
    for name in NETWORKS:
        for number, of_ranks in enumerate(SHARES[ranks][1]):
            loss, before, after = alone(name, sum(of_ranks))
            with np.load(tmp_path / f"{name}.{number}.npz") as stored:
                found = dict(stored)
            where = f"{name} on {ranks} ranks with {of_ranks} rows"
            assert found.pop("ranks") == ranks
            assert float(found.pop("loss")) == pytest.approx(loss, rel=1e-4), where
            assert found.keys() == after.keys()
            for state, value in after.items():
                moved = np.abs(value - before[state]).max()
                assert moved > 0, f"{state} of {name} is not trained"
                off = np.abs(found[state] - value).max()
                bound = TOLERANCE * moved + ROUNDING * np.abs(value).max()
                assert off <= bound, f"{where}: {state} is off by {off:.2g}, and moved by {moved:.2g}"
