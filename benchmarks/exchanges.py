"""Compares exchanges (docs/exchanges.md): exchanges.py [MODEL ...] [--steps 100] [--rates 1gbit 100mbit] [--document].

Also measures what they are for. Two ranks of one thread each train LeNet and the GPT of the examples with each exchange
of exchange_worker.py, on the same batches. Each rank is on a host of its own, a network namespace (test/hosts/hosts.py)
whose link has no limit at first, and then each of the rates; without rates, both are on this host. Times are of rounds
of steps, by contestants in turn. One of them, alone, trains each rank on its share of a batch without communication:
the time of the computation of a step.

Prints for each exchange the bytes that a rank sends in a step, as its collectives say and as its host has counted them,
with headers; the mean loss of ten steps at several points; and the time of a step, also as a ratio of neighbouring
rounds to that alone. --document writes the tables, and a picture of losses by seconds, into docs/exchanges.md.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import worker
from contestant import Contestant, processor
from exchange_worker import HOWS, TASKS

sys.path.insert(0, str(worker.ROOT / "test/hosts"))
from hosts import Hosts, bits_per_second, why_not

RANKS = 2
BURST = 2e-3  # seconds of traffic that a link takes at once, at each rate: more would hide what a step sends
UNLIMITED = "no limit"
MEAN_OF = 10  # steps
ROUND = {"lenet": 10, "gpt": 4}  # steps
DOCUMENT, BEGIN, END = worker.ROOT / "docs/exchanges.md", "<!-- measured -->\n", "<!-- end of measured -->"
BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}  # of an element, by the number in its dtype


def bytes_of(collectives: Sequence[str]) -> int:
    """Returns the bytes that a rank of two sends for the collectives that `exe.collectives` lists: each sends half of
    the elements of an all_reduce twice, all of an all_gather, and a row of an all_to_all to the other."""
    types = [re.search(r"[a-z](\d+)\[(\d+)\]", line) for line in collectives]
    return sum(BYTES[found[1]] * int(found[2]) for found in types if found)


def start(model: str, hosts: Hosts | None) -> dict[str, Contestant]:
    contestants = {how: Contestant(f"exchange-{how}", model, RANKS, 1, hosts) for how in HOWS}
    for contestant in contestants.values():
        contestant.run(2, keep=False)
    return contestants


def measured(model: str, hosts: Hosts | None, options: argparse.Namespace) -> dict[str, Any]:
    """Trains with each exchange. Returns its losses and collectives and, for each rate, what it sends and its times."""
    contestants = start(model, hosts)
    results: dict[str, Any] = {}
    for how, contestant in contestants.items():
        losses = contestant.last[0]["losses"]
        contestant.run(options.steps - len(losses), keep=False)
        last = contestant.last[0]
        results[how] = {"losses": losses + last["losses"], "collectives": last["collectives"], "rates": {}}
    for rate in [UNLIMITED, *options.rates]:
        if hosts and rate != UNLIMITED:
            for host in range(RANKS):
                hosts.set_rate(host, rate, f"{bits_per_second(rate) * BURST / 8:.0f}")
        for how, each in rounds(contestants, hosts, options.rounds, ROUND[model]).items():
            results[how]["rates"][rate] = each
    for contestant in contestants.values():
        contestant.stop()
    return results


def rounds(contestants: Mapping[str, Contestant], hosts: Hosts | None, count: int, steps: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {how: [] for how in contestants}
    sent: dict[str, list[float]] = {how: [] for how in contestants}
    for _ in range(count):
        for how, contestant in contestants.items():
            before = hosts.sent_bytes(0) if hosts else 0
            seconds[how].append(contestant.run(steps, keep=False))
            sent[how].append(((hosts.sent_bytes(0) if hosts else 0) - before) / steps)
    return {
        how: {
            "ms": 1e3 * statistics.median(own),
            "ratio": statistics.median(mine / alone for mine, alone in zip(own, seconds["alone"], strict=True)),
            "sent": statistics.median(sent[how]),
        }
        for how, own in seconds.items()
    }


def rows(heads: Sequence[str], cells: Mapping[str, Sequence[str]]) -> list[str]:
    lines = [f"| exchange | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    return [*lines, *(f"| {how} | {' | '.join(each)} |" for how, each in cells.items())]


def tables(results: Mapping[str, Any]) -> list[str]:
    """Returns the lines of a table of bytes and losses, and of one of times."""
    steps, rates = len(results["alone"]["losses"]), results["alone"]["rates"]
    marks = range(steps // 4, steps + 1, steps // 4)
    sizes, times = {}, {}
    for how, each in results.items():
        sent = min(of_rate["sent"] for of_rate in each["rates"].values())
        means = [np.mean(each["losses"][mark - MEAN_OF : mark]) for mark in marks]
        numbers = [str(len(each["collectives"])), f"{bytes_of(each['collectives']) / 1e3:.1f}", f"{sent / 1e3:.1f}"]
        if how != "alone":  # whose ranks train two models
            sizes[how] = [*numbers, *(f"{mean:.3f}" for mean in means)]
        ofs = each["rates"].values()
        times[how] = [cell for of_rate in ofs for cell in (f"{of_rate['ms']:.1f}", f"{of_rate['ratio']:.2f}")]
    first = rows(["collectives", "KB a step", "with headers", *(f"loss, step {mark}" for mark in marks)], sizes)
    return [*first, "", *rows([head for rate in rates for head in (f"{rate}, ms", "of alone")], times)]


def draw(model: str, results: dict[str, Any], rate: str, path: Path) -> None:
    """Draws the means of ten losses by the seconds that the steps take at the rate."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for how, each in results.items():
        if how != "alone":
            means = np.convolve(each["losses"], np.ones(MEAN_OF) / MEAN_OF, "valid")
            axes.plot((np.arange(len(means)) + MEAN_OF) * each["rates"][rate]["ms"] / 1e3, means, label=how)
    axes.set(xlabel="seconds", ylabel="loss, mean of ten steps", title=f"{model}, two hosts at {rate}")
    axes.set_xscale("log")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def write(lines: Sequence[str]) -> None:
    """Replaces the measured part of the document."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}{chr(10).join(lines)}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"models of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--steps", type=int, default=100, help="steps of which losses are compared")
    parser.add_argument("--rates", nargs="*", default=["1gbit", "100mbit"], help="of each host's link")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each contestant at each rate")
    parser.add_argument("--document", action="store_true", help="write docs/exchanges.md and its pictures")
    parser.add_argument("--out", type=Path, default=worker.ROOT / "build/bench/exchanges.json")
    options = parser.parse_args()
    if unknown := set(options.models) - TASKS.keys():
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    if options.steps < 4 * MEAN_OF:
        parser.error(f"--steps is {options.steps}, expected {4 * MEAN_OF} or more")
    if options.document and not options.rates:
        parser.error("--document needs rates")
    if options.rates and (reason := why_not()):
        sys.exit(f"this machine has no hosts: {reason}")
    lines = [f"{processor()}; medians of {options.rounds} alternating rounds."]
    every: dict[str, Any] = {"cpu": processor()}
    for model in options.models or TASKS:
        with Hosts(RANKS) if options.rates else nullcontext() as hosts:
            results = every[model] = measured(model, hosts, options)
        lines += ["", f"{model}:", "", *tables(results)]
        if options.document:
            draw(model, results, options.rates[-1], DOCUMENT.with_name(f"exchanges-{model}.svg"))
            lines += ["", f"![losses by seconds](exchanges-{model}.svg)"]
    print("\n".join(lines))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(every, indent=1) + "\n")
    if options.document:
        write(lines)


if __name__ == "__main__":
    main()
