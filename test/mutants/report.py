"""Verdicts about mutants: the journal of runs, the list of equivalent mutants, and the report."""

import collections
import dataclasses
import difflib
import json
import pathlib

from source import Mutant, apply

HERE = pathlib.Path(__file__).resolve().parent
EQUIVALENT = HERE / "equivalent.txt"
NOTICED = ("noticed", "timed out")
MISSED = ("survived", "not reached")
ORDER = (*NOTICED, *MISSED, "equivalent", "not compiled", "not tried")


@dataclasses.dataclass
class Verdict:
    mutant: Mutant
    outcome: str  # one of ORDER
    by: str = ""  # the test that noticed it, or the reason why it is equivalent

    def __str__(self) -> str:
        return f"{self.outcome:12} {self.mutant}" + (f"  [{self.by}]" if self.by else "")


def read_equivalent(text: str) -> dict[tuple[str, str, str, str], str]:
    """Returns the reason for each (file, function, before, after). The file describes its own form."""
    result = {}
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        if len(lines) < 4 or not lines[1].startswith("-") or not lines[2].startswith("+") or ": " not in lines[0]:
            raise ValueError(f"mutants: {EQUIVALENT.name}: expected 'file: function', -, +, reason; found\n{block}")
        file, _, function = lines[0].partition(": ")
        result[file, function, lines[1][1:].strip(), lines[2][1:].strip()] = " ".join(lines[3:])
    return result


class Journal:
    """The outcomes so far, one per line, so that an interrupted run continues where it was.

    They hold for one state of the sources; those of another state are dropped.
    """

    def __init__(self, path: pathlib.Path, state: str, fresh: bool = False):
        self.path = path
        self.outcomes: dict[str, tuple[str, str]] = {}
        lines = path.read_text().splitlines() if path.is_file() and not fresh else []
        if lines and lines[0] == state:
            for line in lines[1:]:
                key, outcome, by = json.loads(line)
                self.outcomes[key] = (outcome, by)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(state + "\n")

    def add(self, key: str, outcome: str, by: str) -> None:
        self.outcomes[key] = (outcome, by)
        with self.path.open("a") as file:
            file.write(json.dumps([key, outcome, by]) + "\n")


def difference(source: bytes, mutant: Mutant) -> str:
    """Returns the mutant as a patch."""
    before, after = source.decode().splitlines(True), apply(source, mutant).decode().splitlines(True)
    return "".join(difflib.unified_diff(before, after, f"a/{mutant.file}", f"b/{mutant.file}"))


def summary(verdicts: list[Verdict]) -> str:
    counts = collections.Counter(verdict.outcome for verdict in verdicts)
    noticed, missed = sum(counts[each] for each in NOTICED), sum(counts[each] for each in MISSED)
    listed = ", ".join(f"{counts[each]} {each}" for each in ORDER if counts[each])
    ratio = f"; {noticed} of {noticed + missed} noticed, {noticed / (noticed + missed):.0%}" if noticed + missed else ""
    return f"mutants: {len(verdicts)}: {listed}{ratio}"


def write_report(folder: pathlib.Path, verdicts: list[Verdict], sources: dict[str, bytes]) -> None:
    """Writes report.txt, one line per mutant, and missed.diff, the patches of the mutants that no test noticed."""
    missed = [verdict for verdict in verdicts if verdict.outcome in MISSED]
    lines = [str(verdict) for verdict in verdicts] + [summary(verdicts)]
    (folder / "report.txt").write_text("\n".join(lines) + "\n")
    patches = [f"# {each}\n" + difference(sources[each.mutant.file], each.mutant) for each in missed]
    (folder / "missed.diff").write_text("\n".join(patches))
