"""The files, folders, links and commands that documents name exist, and the program prints what the walk shows."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import pytest

import lockstep as ls
from ranks import run_in_threads

ROOT = Path(__file__).parents[2]
GENERATED = {"ops.md", "onnx.md", "options.md", "scaling.md"}
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    if path.name not in GENERATED
)
FOLDERS = ["backends", "bazel", "benchmarks", "core", "cpp_library", "docs", "examples", "frontends", "passes"]
FOLDERS += ["python_bindings", "runtime", "test", "tools", "verify"]
SUFFIXES = r"\.(bzl|cc|h|inc|ir|md|py|pyi|sh|toml)$"
WORD = r"(?<![\w./~:-])[\w.*<>{},-]+(?:/[\w.*<>{},-]+)*/?(?![\w/])"
MAKE_TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
# Files that users write or programs make, and files of other projects.
ELSEWHERE = {"machine.toml", "gpu_results.md", "docs/gpu_results.md", "program.py", "launch.py"}
ELSEWHERE |= {"absl/status/status.h", "cublasLt.h", "cuda.h"}


def prose(document: str) -> str:
    return re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def known() -> set[str]:
    """The files and folders of the repository, each after a slash."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        paths += [ROOT / folder, *(ROOT / folder).rglob("*")]
    return {f"/{path.relative_to(ROOT)}" for path in paths}


def named(document: str) -> set[str]:
    """The words in backticks that name files or folders of the repository."""
    words = {word.strip(",.") for code in re.findall(r"`([^`]+)`", prose(document)) for word in re.findall(WORD, code)}
    return {word for word in words if re.search(SUFFIXES, word) or ("/" in word and word.split("/")[0] in FOLDERS)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_a_document_names_exist(document: str, known: set[str]) -> None:
    patterns = {word: "*/" + re.sub(r"<\w+>|{[\w,]+}", "*", word).rstrip("/") for word in named(document) - ELSEWHERE}
    missing = [word for word, pattern in patterns.items() if not any(fnmatchcase(path, pattern) for path in known)]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_of_a_document_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)[^)]*\)", prose(document))
    assert [link for link in links if not (ROOT / PurePosixPath(document).parent / link).exists()] == []


def test_commands_that_documents_name_exist() -> None:
    packages = {path.parent: path.read_text() for path in ROOT.glob("*/**/BUILD")}
    wanted, labels = set(), set()
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for code in re.findall(r"^```.*?^```|`[^`]+`", text, re.DOTALL | re.MULTILINE):
            wanted |= {(document, name) for name in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", code, re.MULTILINE)}
            labels |= {(document, *label) for label in re.findall(r"(?<![\w:])//([a-z_][\w/]*)(?::([\w-]+)|/\.)", code)}
    assert len(wanted) > 20 and len(labels) > 5
    assert [each for each in wanted if each[1] not in MAKE_TARGETS] == []
    for document, package, name in labels:
        assert (ROOT / package).is_dir(), (document, package)
        assert not name or f'name = "{name}"' in packages[ROOT / package], (document, package, name)


def test_the_walk_shows_what_the_program_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DUMP", str(tmp_path))
    model = ls.load_onnx(ROOT / "examples/mnist/lenet.onnx", dims={"batch": 128})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.05, momentum=0.9))
    steps = run_in_threads(2, lambda world: ls.compile(step, world=world, threads=1).steps)[0]
    printed = "\n".join([str(model), str(step), *(path.read_text() for path in tmp_path.glob("*.rank0/*")), steps])
    blocks = re.findall(r"^```\n(.*?)^```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\n      {", " {").splitlines() if "%" in line]
    assert len(lines) > 10
    for line in lines:
        text = re.sub(r"^[a-z-]+   +|^ *\[\d+\] |(?<=\S)      .*", "", line)  # the pass, the number or the comment
        pattern = r"\s+".join(map(re.escape, text.split())).replace("…", ".*")
        assert re.search(pattern, printed, re.DOTALL), line


def test_the_page_of_environment_variables_is_complete() -> None:
    read = set()
    for folder in ("backends", "core", "frontends", "passes", "python_bindings", "runtime", "tools"):
        for file in (ROOT / folder).rglob("*.*"):
            if file.suffix in (".cc", ".h", ".py") and not file.stem.endswith("_test"):
                read |= set(re.findall(r'"(LOCKSTEP_[A-Z_]+)"', file.read_text()))
    read = {name for name in read if not name.startswith("LOCKSTEP_TEST_")}
    assert set(re.findall(r"`(LOCKSTEP_[A-Z_]+)`", (ROOT / "docs/environment.md").read_text())) == read
