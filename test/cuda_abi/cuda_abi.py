"""Compares our declarations of NVIDIA's libraries with the vendor's own headers: `make cuda-abi`.

Each source of this folder includes one of our headers and the vendor's, and asserts at compile time that functions,
constants and structs agree. The vendor's headers come from Python's nvidia-* packages, unpacked into build/cuda_abi
without the libraries. Arguments name headers to compare with in addition to the pinned packages: other versions of a
package ("nvidia-nccl-cu13==2.27.7"), or folders with headers ("/usr/local/cuda/include").
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / "build" / "cuda_abi"
# Headers that the headers below include: a package, and a header in it.
COMMON = {
    "nvidia-cuda-runtime==13.0.96": "cuda_runtime.h",
    "nvidia-cuda-crt==13.0.88": "crt/host_config.h",
    "nvidia-cuda-cccl==13.0.85": "nv/target",
}


@dataclasses.dataclass(frozen=True)
class Library:
    source: str  # our source, in this folder
    header: str  # the vendor's header
    package: str  # the package that contains `header`


LIBRARIES = [
    Library("driver.cc", "cuda.h", "nvidia-cuda-runtime==13.0.96"),
    Library("nccl.cc", "nccl.h", "nvidia-nccl-cu13==2.28.9"),
    Library("cublaslt.cc", "cublasLt.h", "nvidia-cublas==13.1.0.3"),
    Library("cudnn.cc", "cudnn.h", "nvidia-cudnn-cu13==9.19.0.56"),
    Library("nvrtc.cc", "nvrtc.h", "nvidia-cuda-nvrtc==13.0.88"),
]


def folders_with(header: str, root: Path) -> list[Path]:
    """Returns the include folders below `root` that contain this header."""
    return sorted(folder for folder in [root, *root.rglob("include")] if (folder / header).is_file())


def unpack(package: str) -> Path:
    """Downloads a package, keeps only its headers, and returns their folder."""
    folder = UNPACKED / package.replace("==", "-")
    if folder.is_dir():
        return folder
    print(f"cuda-abi: fetching the headers of {package}", flush=True)
    UNPACKED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*pip, "--only-binary", ":all:", "--dest", scratch, package], check=False).returncode != 0:
            sys.exit(f"cuda-abi: pip could not fetch {package}")
        headers = Path(scratch) / "headers"
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(headers, [name for name in archive.namelist() if "/include/" in name])
        if not headers.is_dir():
            sys.exit(f"cuda-abi: {package} has no headers")
        shutil.move(headers, folder)
    return folder


def compare(library: Library, headers: Path, common: list[Path], name: str) -> bool:
    """Compiles the source of a library with the headers of one version. Prints the compiler's messages."""
    found = folders_with(library.header, headers)
    if not found:
        sys.exit(f"cuda-abi: {name} has no {library.header}")
    includes = [f"-isystem{folder}" for folder in [found[0], *common]]
    source = Path(__file__).parent / library.source
    command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wno-deprecated-declarations", f"-I{ROOT}", *includes]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    agree = done.returncode == 0
    print(f"cuda-abi: {library.source} and {library.header} of {name}: {'agree' if agree else 'differ'}")
    lines = done.stderr.splitlines()
    for line in [line for line in lines if "error:" in line or "warning:" in line] or lines:
        print(f"  {line}")
    return agree


def stem(package: str) -> str:
    """The name without the CUDA version: "nvidia-nccl" of "nvidia-nccl-cu13==2.28.9"."""
    return package.partition("==")[0].removesuffix("-cu13").removesuffix("-cu12")


def versions(library: Library, others: list[str]) -> list[str]:
    """The pinned package of a library, and the packages of this library among the arguments."""
    return [library.package, *(other for other in others if stem(other) == stem(library.package))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cuda-abi", description=__doc__.splitlines()[0])
    parser.add_argument("others", nargs="*", help="packages with a version, or folders with headers")
    others = parser.parse_args().others
    folders = [Path(other).resolve() for other in others if "==" not in other]
    packages = [other for other in others if "==" in other]
    missing = [
        str(folder) for folder in folders if not any(folders_with(library.header, folder) for library in LIBRARIES)
    ]
    unknown = [other for other in packages if not any(other in versions(library, packages) for library in LIBRARIES)]
    if missing or unknown:
        sys.exit(
            f"cuda-abi: neither a folder with headers nor a version of a package that is compared: {', '.join(missing + unknown)}"
        )

    common = [folders_with(header, unpack(package))[0] for package, header in COMMON.items()]
    agree = []
    for library in LIBRARIES:
        for package in versions(library, packages):
            agree.append(compare(library, unpack(package), common, package))
        for folder in folders:
            if folders_with(library.header, folder):
                agree.append(compare(library, folder, [folder, *common], str(folder)))
    print(f"cuda-abi: {sum(agree)} of {len(agree)} comparisons agree")
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
