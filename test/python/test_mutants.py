"""The sources that `make mutants` makes: each mistake is active when it is selected, and no other one is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "mutants"))
from report import Journal, read_equivalent
from schemata import Schemata, wrong_mutants
from source import Kind, Mutant, apply, make_mutant, numbered

SOURCE = b"""#include <cstdio>
#define TWICE(x) ((x) + (x))
constexpr int kThree = 3;
int Count(int limit) {
  int n = 0;
  for (int i = 0; i < limit && n < 100; ++i) {
    if (i == 2) continue;  // a comment
    if (i > 90) n += TWICE(kThree * 7); else
      n += i;
  }
  return n;
}
int main() { std::printf("%d", Count(5)); }
"""


def mutant(original: str, text: str, kind: Kind = Kind.EXPRESSION) -> Mutant:
    begin = SOURCE.index(original.encode())
    return make_mutant("a.cc", "Count", SOURCE, begin, begin + len(original), kind, text)


def mutants() -> list[Mutant]:
    return numbered(
        [
            mutant("i < limit && n < 100", "i < limit || n < 100"),
            mutant("i < limit", "i <= limit"),
            mutant("i < limit", "i >= limit"),
            mutant("i == 2", "i != 2"),
            mutant("2", "1"),
            mutant("continue;", ";", Kind.STATEMENT),
            mutant("continue;", "break;", Kind.STATEMENT),
            mutant("n += i;", ";", Kind.STATEMENT),
            mutant("kThree * 7", "kThree + 7"),
        ]
    )


def run(program: Path, **environment: str) -> str:
    done = subprocess.run(
        [program], env=os.environ | environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def build(tmp_path: Path, text: str, name: str = "a") -> Path:
    (tmp_path / f"{name}.cc").write_text(text)
    subprocess.run(["g++", "-std=c++20", "-o", tmp_path / name, tmp_path / f"{name}.cc"], check=True)
    return tmp_path / name


def test_each_switch_is_its_mutant_and_no_switch_is_the_code(tmp_path: Path) -> None:
    found = mutants()
    program = build(tmp_path, Schemata(SOURCE, list(enumerate(found))).text)
    assert run(program) == run(build(tmp_path, SOURCE.decode(), "original")) == "8"
    outputs = [run(program, LOCKSTEP_MUTANT=str(number)) for number in range(len(found))]
    for number, each in enumerate(found):
        assert outputs[number] == run(build(tmp_path, apply(SOURCE, each).decode(), f"by_hand_{number}")), each
    assert len(set(outputs)) > 5


def test_what_was_reached_is_noted(tmp_path: Path) -> None:
    found = mutants()
    program = build(tmp_path, Schemata(SOURCE, list(enumerate(found))).text)
    reached = tmp_path / "reached"
    reached.write_bytes(bytes(len(found)))
    run(program, LOCKSTEP_MUTANTS_REACHED=str(reached))
    missing = [each.text for number, each in enumerate(found) if reached.read_bytes()[number] == 0]
    assert missing == ["kThree + 7"]


def test_what_does_not_compile_is_told_apart(tmp_path: Path) -> None:
    begin = SOURCE.index(b"3;")
    constant = make_mutant("a.cc", "", SOURCE, begin, begin + 1, Kind.EXPRESSION, "4")
    found = numbered([*mutants(), constant, mutant("i > 90", "i->x")])
    schemata = Schemata(SOURCE, list(enumerate(found)))
    (tmp_path / "a.cc").write_text(schemata.text)
    done = subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", "a.cc"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    wrong = wrong_mutants(schemata, "a.cc", done.stderr)
    assert {found[number].text for number in wrong} == {"4", "i->x"}


def test_names_stay_when_other_lines_change() -> None:
    before, after = mutant("i == 2", "i != 2"), mutant("i < limit", "i <= limit")
    assert before.before == "if (i == 2) continue; // a comment"
    assert before.after == "if (i != 2) continue; // a comment"
    longer = b"\n\n" + SOURCE
    begin = longer.index(b"i == 2")
    assert make_mutant("a.cc", "Count", longer, begin, begin + 6, Kind.EXPRESSION, "i != 2").key == before.key
    assert before.key != after.key


def test_a_journal_holds_for_one_state_of_the_sources(tmp_path: Path) -> None:
    Journal(tmp_path / "journal", "one").add("key", "survived", "")
    assert Journal(tmp_path / "journal", "one").outcomes == {"key": ("survived", "")}
    assert Journal(tmp_path / "journal", "other").outcomes == {}


def test_equivalent_mutants_have_a_reason() -> None:
    listed = (ROOT / "test" / "mutants" / "equivalent.txt").read_text()
    for (file, _, before, after), reason in read_equivalent(listed).items():
        lines = re.sub(r"\s+", " ", (ROOT / file).read_text())
        assert before in lines, f"{file} no longer has the line '{before}'"
        assert before != after
        assert len(reason) > 10
    with pytest.raises(ValueError, match="expected"):
        read_equivalent("a.cc: F\n- x\n+ y")


def test_the_finder_sees_what_one_could_get_wrong(tmp_path: Path) -> None:
    libclang = ROOT / "build" / "mutants" / "libclang"
    if not libclang.is_dir():
        pytest.skip("make mutants has not installed libclang")
    sys.path.insert(0, str(libclang))
    import find

    headers = subprocess.run(["g++", "-print-file-name=include"], check=True, capture_output=True, text=True).stdout
    (tmp_path / "a.cc").write_bytes(SOURCE)
    arguments = ["-xc++", "-std=c++20", "-isystem", headers.strip()]
    found = find.find_mutants("a.cc", tmp_path / "a.cc", arguments)
    texts = {(SOURCE[each.begin : each.end].decode(), each.text) for each in found}
    for each in mutants():
        if each.text not in ("break;",):
            assert (SOURCE[each.begin : each.end].decode(), each.text) in texts
    assert ("i == 2", "false") in texts
    assert not any(original == "3" for original, _ in texts), "constants do not compile"
