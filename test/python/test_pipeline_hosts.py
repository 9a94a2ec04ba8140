"""Stages on two hosts compute, bit by bit, what the same ranks on one host compute, and send only the stages' transfers
between hosts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from mpi_pipeline_hosts import STEPS, learn, step
from ranks import run_in_threads

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

import hosts

# By the number of ranks of each host. Two ranks of a host are replicas of one stage, so their gradients stay on the
# host.
MESHES = {1: {"stage": 2}, 2: {"stage": 2, "data": 2}}


@pytest.mark.skipif(bool(hosts.why_not()), reason=f"no hosts on this machine: {hosts.why_not()}")
def test_stages_on_two_hosts(tmp_path: Path) -> None:
    graph = step()
    expected = learn(ls.Communicator.single(), graph, None)["losses"]
    assert expected[-1] < 0.99 * expected[0]
    with hosts.Hosts(2, "1gbit") as two:
        for ranks, mesh in MESHES.items():
            command = (sys.executable, HERE / "mpi_pipeline_hosts.py", tmp_path, json.dumps(mesh))
            done = two.mpirun([ranks, ranks], *command, timeout=120, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2 * ranks)]
            on_one_host = run_in_threads(2 * ranks, lambda world, mesh=mesh: learn(world, graph, mesh))
            for rank, here in zip(found, on_one_host, strict=True):
                assert not isinstance(here, Exception), here
                assert (rank["size"], rank["on_host"]) == (2 * ranks, ranks)
                assert rank["losses"] == here["losses"] == found[0]["losses"]
                assert rank["given"] == here["given"]
                np.testing.assert_allclose(rank["losses"], expected, rtol=1e-5)
            # The first rank measures the bytes sent by its host, the last rank those sent by the other stage's host.
            for rank, way in ((found[0], "0 to 1"), (found[-1], "1 to 0")):
                wanted = STEPS * ranks * rank["given"][way]
                # The bound allows for headers, what ranks compare, and segments that TCP repeats on a busy machine.
                # Gradients would double the bytes.
                assert wanted < rank["sent"] < 1.5 * wanted
