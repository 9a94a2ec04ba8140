"""Each block of code in the README and docs/ is run, or what it names is compared with the programs' own options."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from document_code import PAGES, ROOT, blocks
from lockstep import _command
from ranks import MPI_ENVIRONMENT
from test_documents import FOLDERS, MAKE_TARGETS

DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
RUN_BY = {"docs/data.md": "test_data_document.py"}  # which also compares the samples of one rank and of two
CONTINUED = {how.after for how in PAGES.values()}  # run with the page that continues it
SUBCOMMANDS = next(
    action.choices for action in _command._parser()._actions if isinstance(action, argparse._SubParsersAction)
)
PROGRAM = Path(__file__).with_name("document_code.py")


def test_every_page_with_python_is_run() -> None:
    pages = {page for page in DOCUMENTS if blocks(page, "python")}
    assert pages == PAGES.keys() | RUN_BY.keys()
    for page, test in RUN_BY.items():
        assert page in PROGRAM.with_name(test).read_text()


def test_blocks_that_are_not_run_are_parts_of_programs_that_are() -> None:
    left_out = [(page, text) for page, how in PAGES.items() for text in how.not_run]
    assert len(left_out) == 2
    for page, text in left_out:
        assert len([block for block in blocks(page, "python") if text in block.code]) == 1
        assert (ROOT / PAGES[page].not_run[text].split()[-1]).is_file()


@pytest.mark.parametrize("page", [page for page in PAGES if page not in CONTINUED])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    how = PAGES[page]
    for name in ("examples", "test"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "build/train").mkdir(parents=True)
    command = [sys.executable, str(PROGRAM), page]
    if how.ranks > 1 or how.servers:
        launcher = "local" if how.servers else "direct"  # without mpirun
        launch = ["launch", "--launcher", launcher, "-n", str(how.ranks), "-s", str(how.servers)]
        command = [sys.executable, "-m", "lockstep", *launch, *command]
    environment = {**os.environ, **MPI_ENVIRONMENT}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = [page, how.after] if how.after else [page]
    ran = sum(len(blocks(each, "python")) - len(PAGES[each].not_run) for each in pages)
    assert ran > 0 and done.stdout.count(f"RAN {ran}\n") == how.ranks, done.stdout


def command_lines(page: str) -> list[str]:
    """The commands of a page's blocks without a language and of `sh`: without comments, and their outputs left out where
    the block has prompts."""
    found = []
    for block in blocks(page):
        if block.language not in ("", "sh"):
            continue
        lines = block.code.splitlines()
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        found += [re.sub(r"(^|\s)#.*", "", line) for line in prompted or lines]
    return found


def words_of_lockstep(words: list[str]) -> Iterator[list[str]]:
    """The arguments of each call of `lockstep` in a line of shell."""
    for at, word in enumerate(words[:-1]):
        if word.split("/")[-1] == "lockstep":
            yield words[at + 1 :]


def unknown_options(words: list[str]) -> list[str]:
    """What `lockstep`'s parsers do not know of a call: the subcommand, or options before the program that it starts."""
    if words[0] not in SUBCOMMANDS:
        return [words[0]]
    known = SUBCOMMANDS[words[0]]._option_string_actions
    found, rest = [], words[1:]
    while rest:
        name, _, value = rest.pop(0).partition("=")
        if name in ("--", "python", "mpirun"):
            break
        if name.startswith("-") and name not in known:
            found.append(name)
        elif name.startswith("-") and known[name].nargs != 0 and not value:
            rest.pop(0)
    return found


def missing(word: str) -> bool:
    """True for a file of the repository, or a program that Bazel makes of it, that does not exist."""
    if word.startswith("bazel-bin/"):
        target = Path(word.removeprefix("bazel-bin/"))
        return f'name = "{target.name}"' not in (ROOT / target.parent / "BUILD").read_text()
    return word.split("/")[0] in FOLDERS and "/" in word and not (ROOT / word).exists()


@pytest.mark.parametrize("page", [page for page in DOCUMENTS if command_lines(page)])
def test_what_commands_name_exists(page: str) -> None:
    wrong = []
    for line in command_lines(page):
        words = re.sub(r"['\";()]", " ", line).split()
        for call in words_of_lockstep(words):
            wrong += unknown_options(call)
        for name, value in pairwise(words):
            if name == "make" and value not in MAKE_TARGETS:
                wrong.append(f"make {value}")
            if name == "-m" and value not in ("venv", "pip") and importlib.util.find_spec(value) is None:
                wrong.append(f"-m {value}")
        wrong += [word for word in words if missing(word)]
    assert wrong == []


def test_wrong_commands_are_noticed() -> None:
    assert unknown_options(
        ["launch", "-n", "2", "-H", "hosts", "--num", "3", "python", "train.py", "--epochs", "4"]
    ) == ["--num"]
    assert unknown_options(["elastic", "--restart", "5", "--min-rank=2", "--", "mpirun", "-np", "4"]) == ["--min-rank"]
    assert unknown_options(["lunch"]) == ["lunch"]
    assert missing("bazel-bin/tools/lockstep-optimize") and not missing("bazel-bin/tools/lockstep-opt")
    assert missing("test/hosts/slurm2.py") and not missing("test/hosts/slurm.py")
    assert sum(len(list(words_of_lockstep(line.split()))) for page in DOCUMENTS for line in command_lines(page)) > 15


def test_the_manifests_of_the_page_on_kubernetes() -> None:
    """They are YAML, and a pod of the Job has what `from_environment` reads."""
    yaml = pytest.importorskip("yaml", reason="requirements-site.txt is not installed; `make site` installs it")
    first, second = (list(yaml.safe_load_all(block.code)) for block in blocks("docs/kubernetes.md", "yaml"))
    (service, job), (torch_job,) = first, second
    assert job["spec"]["completionMode"] == "Indexed" and job["spec"]["completions"] == job["spec"]["parallelism"]
    pod = job["spec"]["template"]["spec"]
    given = {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["containers"][0]["env"]}
    assert given.keys() == {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_SECRET"}
    assert int(given["WORLD_SIZE"]) == job["spec"]["completions"] and int(given["MASTER_PORT"]) > 1024
    assert given["RANK"]["fieldRef"]["fieldPath"].endswith("['batch.kubernetes.io/job-completion-index']")
    name = job["metadata"]["name"]
    assert given["MASTER_ADDR"] == f"{name}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    for replica in torch_job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"  # the operator sets variables in the container of this name alone
        assert [each["name"] for each in container["env"]] == ["LOCKSTEP_SECRET"]
