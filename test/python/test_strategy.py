"""compile(strategy="parameter_server"), on two workers and two servers under mpirun, and its refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lockstep as ls
from ranks import MPI_ENVIRONMENT

WORKER = Path(__file__).with_name("mpi_strategy.py")


def test_two_workers_and_two_servers(tmp_path: Path) -> None:
    serve = (sys.executable, "-m", "lockstep", "serve", "--timeout", "60")
    command = ("mpirun", "-n", "2", sys.executable, str(WORKER), str(tmp_path), ":", "-n", "2", *serve)
    roles = {"LOCKSTEP_WORKERS": "2", "LOCKSTEP_SERVERS": "2"}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **MPI_ENVIRONMENT, **roles},
        timeout=120,
    )
    reports = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("*.json"))]
    assert done.returncode == 0 and [report["size"] for report in reports] == [2, 2], done.stdout + done.stderr
    for report in reports:
        reduced, served = report["memory"]
        assert served * 3 <= reduced  # no worker has Adam's states
        assert report["synchronous"] == 0
        assert report["trained"] == 3 * 3  # epochs of three full batches
        assert "on average, at most" in report["asynchronous"]
        assert "input x: expected f32[12,6]" in report["error"]
        for step in ("push", "pull.start", "pull.wait"):
            assert step in report["steps"]
    assert reports[1]["find_nan"] == 'find_nan: strategy="parameter_server": the servers would update the weights'


STEP = ls.train_step(
    ls.parse(
        "graph @model(%x: f32[4,3] split(0), state %w: f32[3,2]) -> (logits: f32[4,2] split(0)) {\n"
        "  %z = matmul %x, %w : f32[4,2]\n  return %z\n}"
    ),
    ls.loss.softmax_cross_entropy("logits", "label"),
    ls.optim.SGD(0.1),
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "servers"}, 'strategy is \'servers\', expected "all_reduce" or "parameter_server"'),
        (
            {"strategy": "parameter_server"},
            'requires the workers of a job, world=Communicator.from_environment(), but this world has the transport "single"',
        ),
        ({"asynchronous": True}, 'asynchronous requires strategy="parameter_server"'),
        ({"max_staleness": 0}, 'max_staleness requires strategy="parameter_server"'),
        ({"bigarray_bound": 5}, 'bigarray_bound requires strategy="parameter_server"'),
        ({"strategy": "parameter_server", "max_staleness": 1}, "max_staleness requires asynchronous=True"),
        ({"strategy": "parameter_server", "wire": "bf16"}, "does not go with wire"),
        ({"strategy": "parameter_server", "bucket_bytes": 1 << 20}, "does not go with bucket_bytes"),
        ({"strategy": "parameter_server", "factors": True}, "does not go with factors"),
        ({"strategy": "parameter_server", "factors": 0.5}, "does not go with factors"),
        ({"strategy": "parameter_server", "factors": False}, "requires the workers of a job"),
        ({"strategy": "parameter_server", "shared_weights": True}, "does not go with shared_weights"),
        ({"strategy": "parameter_server", "backend": "cuda"}, 'does not go with backend="cuda"'),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ls.Error) as raised:
        ls.compile(STEP, **options)
    assert message in str(raised.value)


def test_staleness_is_of_servers() -> None:
    with pytest.raises(ls.Error, match='is not compiled with strategy="parameter_server"'):
        ls.compile(STEP).staleness()
