"""Measures all_reduce of f32 sums of 4 KiB to 100 MiB: Lockstep, MPI_Allreduce and gloo, on two ranks of this machine.

benchmarks/all_reduce_bench.cc runs the first two in alternation, call by call. gloo, through torch.distributed, runs
between its rounds, in the same way: several buffers, written again before each call; the time of the slowest rank from
a barrier; medians.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from contestant import ENVIRONMENT, free_port

ROOT = Path(__file__).resolve().parents[1]
SIZES = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    100 << 20,
]  # as in all_reduce_bench.cc
ROTATED = 256 << 20


def gloo_worker(seconds: float) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for size in SIZES:
        buffers = [torch.empty(size // 4) for _ in range(max(2, min(16, ROTATED // size)))]
        times: list[float] = []
        deadline = time.perf_counter() + seconds
        keep_on = torch.ones(1)
        while keep_on.item() and len(times) < 2000:
            buffer = buffers[len(times) % len(buffers)]
            buffer.fill_(float(rank + len(times)))
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(buffer)
            slowest = torch.tensor([time.perf_counter() - start])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times.append(slowest.item())
            keep_on = torch.tensor([float(time.perf_counter() < deadline or len(times) < 5)])
            dist.broadcast(keep_on, 0)
        if rank == 0:
            print(json.dumps({"bytes": size, "gloo_ms": 1e3 * statistics.median(times)}), flush=True)


def mpirun(ranks: int, *command: str | Path) -> str:
    environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    return subprocess.run(
        ["mpirun", "-np", str(ranks), *map(str, command)],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def one_round(ranks: int, seconds: float) -> list[dict[str, Any]]:
    ours = json.loads(mpirun(ranks, ROOT / "bazel-bin/benchmarks/all_reduce_bench", "--json", f"--seconds={seconds}"))
    gloo = [
        json.loads(line)
        for line in mpirun(ranks, sys.executable, __file__, "--gloo-worker", "--seconds", str(seconds)).splitlines()
        if line.startswith("{")
    ]
    rows = ours["rows"] if isinstance(ours, dict) else ours
    return [{**row, **other} for row, other in zip(rows, gloo, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds for each size and contestant in a round")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/all_reduce.json")
    parser.add_argument("--gloo-worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.gloo_worker:
        return gloo_worker(arguments.seconds)
    if importlib.util.find_spec("torch") is None:
        sys.exit(
            "benchmarks/all_reduce.py compares with gloo of PyTorch, which is not installed: .venv/bin/pip install torch==2.13.0"
        )
    rounds = [one_round(arguments.ranks, arguments.seconds) for _ in range(arguments.rounds)]
    rows = []
    print(f"{'bytes':>10} {'Lockstep':>12} {'MPI_Allreduce':>14} {'gloo':>12} {'against MPI':>12} {'against gloo':>13}")
    for same_size in zip(*rounds, strict=True):
        median = {name: statistics.median(row[name] for row in same_size) for name in ("ours_ms", "mpi_ms", "gloo_ms")}
        row = {
            "bytes": same_size[0]["bytes"],
            **median,
            "against_mpi": statistics.median(r["mpi_ms"] / r["ours_ms"] for r in same_size),
            "against_gloo": statistics.median(r["gloo_ms"] / r["ours_ms"] for r in same_size),
        }
        rows.append(row)
        print(
            f"{row['bytes']:10} {row['ours_ms']:9.4f} ms {row['mpi_ms']:11.4f} ms {row['gloo_ms']:9.4f} ms "
            f"{row['against_mpi']:11.2f}x {row['against_gloo']:12.2f}x"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"ranks": arguments.ranks, "rows": rows}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
