"""The results of a check: rows, which are written to a file as they come, and a table in Markdown made of them."""

from __future__ import annotations

import dataclasses
import datetime
import json
import threading
from dataclasses import dataclass
from pathlib import Path

PASSED, FAILED, LEFT_OUT, MEASURED = "passed", "failed", "left out", "measured"


@dataclass(frozen=True)
class Row:
    part: str
    what: str
    outcome: str  # PASSED, FAILED, MEASURED or LEFT_OUT
    result: str


class Report:
    """The rows of one run. The files are complete after each row, so a run that is cut off keeps its rows."""

    def __init__(self, folder: Path, facts: dict[str, str]) -> None:
        self.rows: list[Row] = []
        self.facts = facts
        self._folder = folder
        self._lock = threading.Lock()

    def add(self, part: str, what: str, outcome: str, result: str) -> None:
        row = Row(part, what, outcome, " ".join(result.split()))
        with self._lock:
            self.rows.append(row)
            with (self._folder / "results.jsonl").open("a") as file:
                file.write(json.dumps(dataclasses.asdict(row)) + "\n")
            (self._folder / "table.md").write_text(self.table())
        print(f"{row.outcome:8}  {row.part}: {row.what}: {row.result}", flush=True)

    def failed(self) -> bool:
        return any(row.outcome == FAILED for row in self.rows)

    def passed(self) -> bool:
        """True if something was checked or measured, and nothing failed."""
        return not self.failed() and any(row.outcome in (PASSED, MEASURED) for row in self.rows)

    def table(self) -> str:
        cells = [(row.part, row.what, row.outcome, row.result.replace("|", "\\|")) for row in self.rows]
        lines = ["# Results on a machine with a GPU", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self.facts.items()]
        lines += ["", "| part | what | outcome | result |", "|---|---|---|---|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)]) + "\n"


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def shortened(text: str, most: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
