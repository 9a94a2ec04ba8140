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
from seeded_table import TABLE, read_faults
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


ROW = """# A comment.

a.cc: a-pass
- if (i == 2) «continue;» // a comment
+ break;
The loop ends early.

a.cc: -
- i < limit &&  n < «100»
+ 10
The sum is smaller.
"""


def test_a_table_says_where_mistakes_are(tmp_path: Path) -> None:
    first, second = read_faults(ROW, lambda file: {"a.cc": SOURCE}[file])
    assert (first.blamed, first.what, first.mutant.kind) == ("a-pass", "The loop ends early.", Kind.STATEMENT)
    assert (second.blamed, second.mutant.kind, second.mutant.line) == ("", Kind.EXPRESSION, 6)
    assert apply(SOURCE, first.mutant) == SOURCE.replace(b"continue;", b"break;")
    assert apply(SOURCE, second.mutant) == SOURCE.replace(b"100", b"10")
    program = build(tmp_path, Schemata(SOURCE, [(0, first.mutant), (1, second.mutant)]).text)
    assert [run(program, LOCKSTEP_MUTANT=number) for number in ("0", "1", "2")] == ["1", "8", "8"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ROW.replace("The loop ends early.\n", ""), "expected 'file: pass'"),
        (ROW.replace("«100»", "100"), "expected « and »"),
        (ROW.replace("«100»", "«101»"), "occurs 0 times"),
        (ROW.replace("i < limit &&  n < «100»", "«i»"), r"occurs \d+ times"),
    ],
)
def test_a_wrong_row_of_a_table_is_named(wrong: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_faults(wrong, lambda _: SOURCE)


def test_the_table_of_mistakes_fits_the_sources() -> None:
    faults = read_faults(TABLE.read_text(), lambda file: (ROOT / file).read_bytes())
    assert len(faults) >= 200
    keys = [fault.mutant.key for fault in faults]
    assert len(set(keys)) == len(keys), "a mistake occurs twice"
    table = (ROOT / "passes/pass_table.cc").read_text()
    for fault in faults:
        assert fault.mutant.before != fault.mutant.after, fault
        assert not fault.blamed or f'"{fault.blamed}"' in table, f"{fault}: there is no pass {fault.blamed}"
    for file in {fault.mutant.file for fault in faults}:
        of_file = [(number, each.mutant) for number, each in enumerate(faults) if each.mutant.file == file]
        assert Schemata((ROOT / file).read_bytes(), of_file).text.count("lockstep_mutants::Is(") == len(of_file)


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
