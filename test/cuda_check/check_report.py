"""The results of a check: rows, which are written to a file as they come, and a document in Markdown made of them."""

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
    """The rows of one run. The files are complete after each row, so a run that is cut off keeps its rows.

    gpu_results.md can be committed as docs/gpu_results.md, as it is.
    """

    def __init__(self, folder: Path, facts: dict[str, str]) -> None:
        self.rows: list[Row] = []
        self.facts = facts
        self.seconds: dict[str, float] = {}  # by part
        self._folder = folder
        self._lock = threading.Lock()

    def add(self, part: str, what: str, outcome: str, result: str) -> None:
        row = Row(part, what, outcome, " ".join(result.split()))
        with self._lock:
            self.rows.append(row)
            with (self._folder / "results.jsonl").open("a") as file:
                file.write(json.dumps(dataclasses.asdict(row)) + "\n")
            self._write()
        print(f"{row.outcome:8}  {row.part}: {row.what}: {row.result}", flush=True)

    def took(self, name: str, seconds: float) -> None:
        """Notes the time of a part that has ended."""
        with self._lock:
            self.seconds[name] = seconds
            self._write()
        print(f"          {name} took {seconds:.0f} s", flush=True)

    def _write(self) -> None:
        (self._folder / "gpu_results.md").write_text(self.document())

    def failed(self) -> bool:
        return any(row.outcome == FAILED for row in self.rows)

    def passed(self) -> bool:
        """True if something was checked or measured, and nothing failed."""
        return not self.failed() and any(row.outcome in (PASSED, MEASURED) for row in self.rows)

    def document(self) -> str:
        cells = [(row.part, row.what, row.outcome, row.result.replace("|", "\\|")) for row in self.rows]
        lines = ["# Results of the check on a machine with a GPU", ""]
        lines += ["Written by `tools/cuda_check.sh` ([gpu.md](gpu.md)).", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self.facts.items()]
        times = [f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items()]
        lines += [f"| time of the parts | {', '.join(times)} |"] if times else []
        lines += ["", "| part | what | outcome | result |", "|---|---|---|---|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)]) + "\n"


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def shortened(text: str, most: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
