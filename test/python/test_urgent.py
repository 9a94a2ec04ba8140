"""Between hosts, a collective that the computation waits for does not queue behind collectives that are needed later."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

from hosts import Hosts, why_not


@pytest.mark.skipif(bool(why_not()), reason=f"no hosts: {why_not()}")
def test_what_is_urgent_overtakes(tmp_path: Path) -> None:
    with Hosts(2, rate="100mbit") as hosts:
        done = hosts.mpirun(
            [1, 1], sys.executable, HERE / "mpi_urgent.py", tmp_path, timeout=120, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        waits = json.loads((tmp_path / str(rank)).read_text())
        (urgent,) = (seconds for is_urgent, _, seconds in waits if is_urgent)
        large = max(seconds for is_urgent, size, seconds in waits if not is_urgent and size > 1 << 20)
        # Eight MiB take 0.67 s; the small sum starts at their beginning.
        assert large > 0.4
        assert urgent < 0.2, waits
