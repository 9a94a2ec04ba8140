"""The network between hosts is measured once, the measurements decide the routes, and `lockstep doctor` shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "hosts"))

from hosts import Hosts, why_not

COMMAND = (sys.executable, ROOT / "python_bindings/lockstep/_command.py")
MEET = (sys.executable, "-c", "import lockstep as ls; ls.Communicator.mpi().barrier()")
MEET_BY_DEFAULT = (sys.executable, "-c", "import lockstep as ls; ls.Communicator.mpi(routes='default').barrier()")

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no hosts: {why_not()}")


def run(hosts: Hosts, *command: str | Path) -> subprocess.CompletedProcess[str]:
    done = hosts.mpirun([1] * len(hosts.names), *command, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_three_hosts_are_measured_once(tmp_path: Path) -> None:
    with Hosts(3, rate="1gbit") as hosts:
        folder = Path(hosts.environment()["XDG_CACHE_HOME"]) / "lockstep" / "networks"
        run(hosts, *MEET_BY_DEFAULT)
        assert not folder.exists(), "this run must not measure"
        run(hosts, *MEET)
        (file,) = folder.iterdir()
        text = file.read_text()
        cluster = " ".join(f"{name}*1" for name in hosts.names) + " by tcp in 3 groups"
        assert f'cluster = "{cluster}"\nhosts = 3\nranks = 1\n' in text
        run(hosts, *MEET)
        assert file.read_text() == text, "a known network is not measured again"
        file.write_text(text.replace("latency = ", "latency = 1"))
        done = run(hosts, *MEET)
        assert f"the network is measured again: {file}: its check does not match" in done.stderr
        assert file.read_text() != text
        shown = run(hosts, *COMMAND, "doctor", "--measure", tmp_path / "machine.toml").stdout
        assert f"routes between {cluster}\nlatency " in shown
        assert "\nall_reduce      all below " in shown
        doctor = subprocess.run(
            hosts.on_first(*COMMAND, "doctor"), env=hosts.environment(), capture_output=True, text=True, check=False
        )
        assert f"routes        between {cluster}\n" in doctor.stdout, doctor.stderr


def test_two_hosts_have_one_route_for_each_collective() -> None:
    with Hosts(2) as hosts:
        run(hosts, *MEET)
        assert not (Path(hosts.environment()["XDG_CACHE_HOME"]) / "lockstep").exists()
