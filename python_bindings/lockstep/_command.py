"""The program `lockstep`: `lockstep doctor`, `lockstep status`, `lockstep report`, `lockstep elastic`.

It is run as a file, so that `lockstep doctor` works where the package cannot be imported; the other commands import it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _doctor(_: argparse.Namespace) -> int:
    specification = importlib.util.spec_from_file_location("lockstep_doctor", PACKAGE / "doctor.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.doctor()


def _status(arguments: argparse.Namespace) -> int:
    from lockstep import _lockstep

    print(_lockstep._status(arguments.job), end="")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from lockstep import _job_report

    print(_job_report.write(arguments.folder, arguments.html))
    return 0


def _elastic(arguments: argparse.Namespace) -> int:
    from lockstep import _elastic

    launch = arguments.launch[arguments.launch[:1] == ["--"] :]
    return _elastic.run(launch, arguments.restart, arguments.hosts, arguments.min_ranks)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lockstep", description="Lockstep, a graph compiler for data-parallel training."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor", help="what this machine has, what is missing, and the command that installs it"
    )
    doctor.set_defaults(run=_doctor)
    status = commands.add_parser("status", help="what each rank of a job on this host does, and who is late")
    status.add_argument(
        "job",
        nargs="?",
        default="",
        help="its name, or the number of mpirun's process or of a rank's; the newest job if left out",
    )
    status.set_defaults(run=_status)
    report = commands.add_parser("report", help="where the time of a job went that ran with LOCKSTEP_TRACE=FOLDER")
    report.add_argument("folder", help="the FOLDER, of which the newest job is taken, or that of one job in it")
    report.add_argument("--html", help="where the page is written; report.html beside the trace if left out")
    report.set_defaults(run=_report)
    elastic = commands.add_parser(
        "elastic", help="runs mpirun, and again after a failure, with the hosts that are left"
    )
    elastic.add_argument("--restart", type=int, default=3, metavar="N", help="at most N times again (default: 3)")
    elastic.add_argument("--hosts", metavar="HOST:N,…", help="the hosts, with the ranks of each, for mpirun")
    elastic.add_argument(
        "--min-ranks",
        type=int,
        metavar="M",
        help="leaves out hosts that do not answer, as long as there are M ranks (default: those of all --hosts)",
    )
    elastic.add_argument("launch", nargs=argparse.REMAINDER, metavar="-- mpirun …", help="what starts the job")
    elastic.set_defaults(run=_elastic)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    if parsed.command == "doctor":
        return parsed.run(parsed)
    from lockstep import Error

    try:
        return parsed.run(parsed)
    except Error as error:
        print(f"lockstep {parsed.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.path[0] = str(PACKAGE.parent)  # not this folder, whose modules are no top-level ones
    sys.exit(main())
