"""Coverage-guided fuzzing of the readers of foreign files, with clang's libFuzzer: `make fuzz`, or fuzz.py [TARGET
...].

Each target starts from its corpus, which is checked in, and runs under the address and undefined-behaviour sanitizers
until the time is up. An input that crashes, takes 25 seconds (the machine may be busy) or 4 GiB ends the run and is
left in build/fuzz/TARGET/. `--update` also starts from this repository's models and graph texts, and then replaces the
corpus by the smallest set of inputs with the same coverage.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("onnx", "text")
LIMITS = ["-timeout=25", "-rss_limit_mb=4096", "-malloc_limit_mb=2048"]
LARGEST = {"onnx": 4096, "text": 4096}  # bytes of an input: larger ones are slow and add no coverage


def archive(target: str) -> Path:
    return ROOT / f"test/fuzz/corpus/{target}.tar.gz"


def seeds(target: str) -> Iterator[bytes]:
    """The files of this kind in this repository and in ONNX's tests."""
    if target == "text":
        for file in sorted(ROOT.glob("test/golden/*.ir")):
            for graph in re.split(r"(?m)^// (?:-----|==>).*\n", file.read_text()):
                yield graph.encode()
        return
    for file in [*sorted(ROOT.glob("test/models/*.onnx")), *sorted(ROOT.glob("test/models/architectures/*.onnx.gz"))]:
        yield gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    onnx = importlib.util.find_spec("onnx")
    if onnx is None or onnx.origin is None:
        sys.exit("fuzz: --update needs the package onnx, whose tests are seeds: .venv/bin/python test/fuzz/fuzz.py")
    for file in sorted(Path(onnx.origin).parent.glob("backend/test/data/*/*/model.onnx")):
        yield file.read_bytes()


def build(targets: list[str]) -> dict[str, Path]:
    bazel = os.environ.get("BAZEL", "bazel").split()
    flags = os.environ.get("BAZEL_FLAGS", "").split()
    labels = [f"//test/fuzz:{target}_fuzzer" for target in targets]
    subprocess.run([*bazel, "build", *flags, "--config=fuzz", *labels], cwd=ROOT, check=True)
    return {target: (ROOT / f"bazel-bin/test/fuzz/{target}_fuzzer").resolve() for target in targets}


def write(directory: Path, inputs: Iterator[bytes], largest: int) -> None:
    for i, content in enumerate(inputs):
        if len(content) <= largest:
            (directory / f"seed-{i}").write_bytes(content)


def pack(directory: Path, target: str) -> None:
    """Packs a folder into an archive; equal inputs give equal bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for file in sorted(directory.iterdir()):
            info = tarfile.TarInfo(file.name)
            info.size = file.stat().st_size
            with file.open("rb") as content:
                tar.addfile(info, content)
    archive(target).parent.mkdir(exist_ok=True)
    archive(target).write_bytes(gzip.compress(raw.getvalue(), mtime=0))


def environment() -> dict[str, str]:
    """A failed allocation throws an exception, as it does without the sanitizer."""
    return {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1"}


def culprit(log: str) -> str:
    """libFuzzer's name of the failure, and our functions on the stack, the innermost first."""
    summary = re.findall(r"SUMMARY: (.*)", log)
    calls = re.findall(r"#\d+ 0x\w+ in lockstep::((?:\(anonymous namespace\)::)?[\w:]+)", log)
    return f"{summary[-1] if summary else 'no summary'}, in {' < '.join(calls[:12])}"


def fuzz(target: str, binary: Path, seconds: int, update: bool) -> str:
    """Runs the target. Returns a description of the failure, or ""."""
    directory = ROOT / "build/fuzz" / target
    corpus, found = directory / "corpus", directory / "found"
    for each in (corpus, found):
        each.mkdir(parents=True, exist_ok=True)
    if archive(target).exists():
        with tarfile.open(archive(target)) as tar:
            tar.extractall(corpus, filter="data")
    if update:
        write(corpus, seeds(target), LARGEST[target])
    options = [*LIMITS, f"-max_len={LARGEST[target]}", f"-artifact_prefix={directory}/", "-print_final_stats=1"]
    print(f"fuzz: {target}: {len(list(corpus.iterdir()))} inputs to begin with, {seconds} s", flush=True)
    log = directory / "log"
    with log.open("w") as output:
        run = subprocess.run(  # noqa: PLW1510, its exit code is checked
            [binary, *options, f"-max_total_time={seconds}", found, corpus],
            env=environment(),
            cwd=directory,
            stderr=output,
        )
    text = log.read_text(errors="replace")
    executions = re.search(r"stat::number_of_executed_units: *(\d+)", text)
    covered = re.findall(r"cov: (\d+)", text)
    if run.returncode != 0 or executions is None:
        cause = [line for line in text.splitlines() if not re.match(r"#\d+\t|INFO:|\tNEW_FUNC", line)]
        print(f"fuzz: {target}: exit code {run.returncode}; see {log}\n" + "\n".join(cause[:60]))
        return f"fuzz: {target}: {culprit(text)}"
    print(f"fuzz: {target}: {executions.group(1)} inputs run, {covered[-1]} edges covered, none failed", flush=True)
    if update:
        least = directory / "least"
        least.mkdir(exist_ok=True)
        for old in least.iterdir():
            old.unlink()
        subprocess.run(
            [binary, *options, "-use_counters=0", "-merge=1", least, found, corpus], env=environment(), cwd=directory, check=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        pack(least, target)
        print(
            f"fuzz: wrote {archive(target)}, {len(list(least.iterdir()))} inputs, {archive(target).stat().st_size} bytes"
        )
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}; all if none is given"
    )
    parser.add_argument("--seconds", type=int, default=60, help="time for each target (default: %(default)s)")
    parser.add_argument("--update", action="store_true", help="replace the corpus by the inputs that were found")
    arguments = parser.parse_args()
    targets = arguments.targets or list(TARGETS)
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    binaries = build(targets)
    failures = [fuzz(target, binaries[target], arguments.seconds, arguments.update) for target in targets]
    sys.exit("\n".join(filter(None, failures)) or 0)


if __name__ == "__main__":
    main()
