"""Makes the bundle that tools/cuda_check.sh needs on a machine with a GPU (`make cuda-bundle`).

It is written to build/lockstep-cuda.tar.xz and contains the C++ tests and tools, the Python package, the interpreter of
.venv with NumPy, the networks as graph texts, Open MPI's runtime, and the shared libraries of all of these. It does not
contain glibc, which must be at least as new on that machine as here, nor anything of NVIDIA's or of PyTorch, which that
machine provides. It can be unpacked anywhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from shared_libraries import GLIBC, Closure, is_elf, stand_in

ROOT = Path(__file__).resolve().parents[2]
STAGE = ROOT / "build" / "lockstep-cuda"
MOST_BYTES = 60 * 2**20
PROGRAMS = [
    "//backends/conformance:cuda_conformance_test",
    "//runtime/cuda:nccl_gpu_test",
    "//tools:lockstep-run",
]
SOURCES = [
    "tools/cuda_check.sh",
    "tools/testdata/mlp_step.ir",
    "benchmarks/networks.py",
    "examples/mnist/export_lenet.py",
]
# Libraries that LLVM is linked with but that are never called here: for clang's analyzer (15 MB) and for Windows'
# manifests (35 MB with ICU).
UNUSED = ["libz3.so.4", "libxml2.so.2"]
# Parts of Python's library and of NumPy.
LEFT_OUT = [
    "__pycache__", "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "distutils",
    "config-*", "pydoc_data", "sqlite3", "f2py", "_examples", "*.pyi", "*.a", "*.h", "_test*", "_xxtest*", "_ctypes_test*",
    "xxlimited*", "_tkinter*", "_ssl*", "_hashlib*", "_sqlite3*", "nis.*", "_dbm*", "_gdbm*", "_curses*", "readline*",
]  # fmt: skip


def build() -> None:
    bazel = [*os.environ.get("BAZEL", "bazel").split(), "build", *os.environ.get("BAZEL_FLAGS", "").split()]
    subprocess.run([*bazel, "//python_bindings:_lockstep", *PROGRAMS], cwd=ROOT, check=True)


def copy(source: Path, to: Path, strip: bool = True) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source.resolve(), to)
    to.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
    if strip and is_elf(to):
        subprocess.run(["strip", "--strip-unneeded", str(to)], check=True)


def copy_programs() -> None:
    for target in PROGRAMS:
        copy(
            ROOT / "bazel-bin" / target.removeprefix("//").replace(":", "/"), STAGE / "bin" / target.rpartition(":")[2]
        )


def copy_package() -> None:
    package = STAGE / "python_bindings/lockstep"
    sources = ROOT / "python_bindings/lockstep"
    for source in sorted(sources.rglob("*.py")):
        copy(source, package / source.relative_to(sources))
    copy(ROOT / "bazel-bin/python_bindings/_lockstep.so", package / "_lockstep.so")
    check = Path(__file__).parent
    for source in sorted(check.glob("*.py")):
        copy(source, STAGE / "test/cuda_check" / source.name)
    for source in SOURCES:
        copy(ROOT / source, STAGE / source)
    environment = {**os.environ, "PYTHONPATH": str(STAGE / "python_bindings"), "PYTHONDONTWRITEBYTECODE": "1"}
    # Uses the libraries of .venv, because the bundle's are not there yet.
    environment["LD_LIBRARY_PATH"] = str(ROOT / ".venv/lib")
    graphs = [sys.executable, str(check / "write_graphs.py"), str(STAGE / "test/cuda_check/graphs")]
    subprocess.run(graphs, env=environment, check=True)


def copy_python() -> None:
    """Copies the interpreter, its library and NumPy, as a tree that PYTHONHOME can name."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ignore = shutil.ignore_patterns(*LEFT_OUT)
    home = STAGE / "python"
    copy(Path(sys.base_prefix) / "bin" / version, home / "bin/python3")
    library = home / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=ignore)
    packages = Path(sysconfig.get_path("purelib"))
    for package in ("numpy", "numpy.libs"):
        # NumPy's libraries are not stripped: another tool has changed them in a way that makes strip break them.
        shutil.copytree(packages / package, library / "site-packages" / package, ignore=ignore)
    for extension in library.glob("lib-dynload/*.so"):
        subprocess.run(["strip", "--strip-unneeded", str(extension)], check=True)


def open_mpi_folder(name: str) -> Path:
    """Returns one of the folders that Open MPI was built for, such as "pkglibdir"."""
    out = subprocess.run(["ompi_info", "--path", name, "--parsable"], capture_output=True, text=True, check=True).stdout
    return Path(out.strip().rpartition(":")[2])


def copy_open_mpi(closure: Closure) -> list[str]:
    """Copies mpirun, orted, the library, and the plugins that need no further libraries. Returns the names of the other
    plugins, such as those for network cards.
    """
    for program in ("mpirun", "orted"):
        source = shutil.which(program)
        if source is None:
            sys.exit(f"cuda-bundle: there is no {program}. Run `make setup`, or install openmpi-bin.")
        copy(Path(source), STAGE / "bin" / program)
        closure.add(Path(source).resolve())
    library = (open_mpi_folder("libdir") / "libmpi.so").resolve()
    closure.add(library)
    closure.libraries["libmpi.so.40"] = library  # the name by which the extension module opens it
    shutil.copytree(open_mpi_folder("pkgdatadir"), STAGE / "openmpi/share", symlinks=False)
    left_out = []
    plugins = sorted(open_mpi_folder("pkglibdir").glob("mca_*.so"))
    for plugin in plugins:
        if plugin.stem.startswith("mca_pmix_"):  # ranks find each other through these plugins
            closure.add(plugin)
    for plugin in plugins:
        if closure.missing(plugin):
            left_out.append(plugin.stem)
        else:
            copy(plugin, STAGE / "openmpi/plugins" / plugin.name)
    return left_out


def copy_libraries(closure: Closure) -> None:
    for name, path in sorted(closure.libraries.items()):
        if name in UNUSED:
            stand_in(path, list(closure.users[name]), STAGE / "lib" / name)
        else:
            copy(path, STAGE / "lib" / name)
    pmix = closure.libraries.get("libpmix.so.2")
    if pmix is not None:
        for plugin in sorted((pmix.resolve().parent / "pmix").glob("*.so")):
            if not closure.missing(plugin):
                copy(plugin, STAGE / "openmpi/pmix" / plugin.name)


def write_about() -> None:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    (STAGE / "COMMIT").write_text((commit or "unknown") + "\n")


def check_complete() -> None:
    """Fails unless every library that a file of the bundle needs is in the bundle or belongs to glibc."""
    present = {path.name for path in STAGE.rglob("*.so*")}
    for path in STAGE.rglob("*"):
        if not path.is_file() or not is_elf(path):
            continue
        missing = [name for name in Closure.needed(path) if name not in present and not GLIBC.match(name)]
        if missing:
            sys.exit(f"cuda-bundle: {path.relative_to(STAGE)} needs {', '.join(missing)}, which the bundle lacks")


def pack(archive: Path) -> None:
    tar = ["tar", "--sort=name", "--owner=0", "--group=0", "-C", str(STAGE.parent), "-cf", "-", STAGE.name]
    xz = ["xz", "-T2", "--x86", "--lzma2=preset=9,dict=128MiB"]
    with archive.open("wb") as out, subprocess.Popen(tar, stdout=subprocess.PIPE) as packing:
        subprocess.run(xz, stdin=packing.stdout, stdout=out, check=True)
    if packing.returncode != 0:
        sys.exit("cuda-bundle: tar failed")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make cuda-bundle", description=__doc__.splitlines()[0])
    parser.add_argument("--no-archive", action="store_true", help="only make the folder build/lockstep-cuda")
    arguments = parser.parse_args()
    build()
    shutil.rmtree(STAGE, ignore_errors=True)
    copy_programs()
    copy_package()
    copy_python()
    closure = Closure(UNUSED, [ROOT / ".venv/lib", Path(sys.base_prefix) / "lib"])
    for path in [
        ROOT / "bazel-bin/python_bindings/_lockstep.so",
        *(STAGE / "bin").iterdir(),
        *STAGE.rglob("lib-dynload/*.so"),
    ]:
        closure.add(path)
    closure.add(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
    left_out = copy_open_mpi(closure)
    copy_libraries(closure)
    write_about()
    check_complete()
    print(f"cuda-bundle: {STAGE.relative_to(ROOT)}; without Open MPI's {', '.join(left_out)}")
    if arguments.no_archive:
        return
    archive = STAGE.with_suffix(".tar.xz")
    pack(archive)
    size = archive.stat().st_size
    print(f"cuda-bundle: {archive.relative_to(ROOT)}, {size / 2**20:.1f} MiB")
    if size > MOST_BYTES:
        sys.exit(f"cuda-bundle: the archive is larger than {MOST_BYTES // 2**20} MiB")


if __name__ == "__main__":
    main()
