"""The program `lockstep`: `lockstep doctor`, `status`, `report`, `forecast`, `verify`, `launch`, `elastic` and `serve`.

The program runs as a file, so that `lockstep doctor` works when the package cannot be imported. The other commands
import it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _doctor(arguments: argparse.Namespace) -> int:
    if arguments.measure is not None:
        return _measure(arguments.measure)
    specification = importlib.util.spec_from_file_location("lockstep_doctor", PACKAGE / "doctor.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.doctor()


def _measure(path: str) -> int:
    from lockstep import Communicator
    from lockstep._compile import machine as _machine
    from lockstep._compile import networks

    # So that the routes of this cluster are known from now on, and shown; what follows goes by the routes of _travel.
    Communicator.from_environment().barrier()
    world = Communicator.from_environment(routes="default")
    # Only rank 0 need have the file.
    is_known = world.rank == 0 and Path(path).exists()
    machine = _machine.measure(world, _machine.Machine.read(path) if is_known else _machine.Machine())
    if world.rank == 0:
        machine.write(path)
        print(f"{machine}\nwritten to {path}")
        for name, lines in networks.describe():
            print(f"\nroutes between {name}\n{lines}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from lockstep import _lockstep
    from lockstep._reports import prometheus

    show = prometheus.metrics if arguments.metrics else _lockstep._status
    print(show(arguments.job), end="")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from lockstep._reports import job_report

    print(job_report.write(arguments.folder, arguments.html, arguments.calls))
    return 0


def _elastic(arguments: argparse.Namespace) -> int:
    from lockstep._launch import elastic as _elastic

    launch = arguments.launch[arguments.launch[:1] == ["--"] :]
    return _elastic.run(launch, arguments.restart, arguments.hosts, arguments.min_ranks, arguments.n)


def _serve(arguments: argparse.Namespace) -> int:
    import signal

    from lockstep import _lockstep

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own would wait until the job is over
    _lockstep._serve(arguments.timeout)
    return 0


def _launch(arguments: argparse.Namespace) -> int:
    from lockstep._launch.command import plan_of
    from lockstep._launch.start import say, start

    plan = plan_of(arguments, os.environ, os.getcwd())
    if "--allow-run-as-root" in plan.command:
        say("running as root, so mpirun gets --allow-run-as-root")
    if arguments.dry_run:
        sys.stdout.buffer.write(os.fsencode(str(plan)))
        return 0
    return start(plan, arguments.tolerate_workers, arguments.num_workers, arguments.num_servers)


def _forecast(arguments: argparse.Namespace) -> int:
    from lockstep import forecast

    print(forecast.run(arguments.trace, arguments.machine, arguments.hosts, arguments.picture, arguments.calls))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from lockstep import Error
    from lockstep._graph import verify_file

    if arguments.after is None:
        shrink = not arguments.no_shrink
        print(verify_file.run(arguments.file, arguments.ranks, arguments.strategy, dict(arguments.dims), shrink))
    elif arguments.ranks or arguments.strategy or arguments.dims or arguments.no_shrink:
        raise Error("two files are programs of XLA, which --ranks, --strategy, --dims and --no-shrink do not change")
    else:
        print(verify_file.run_hlo(arguments.file, arguments.after))
    return 0


def _extents(text: str) -> list[tuple[str, int]]:
    try:
        return [(name, int(extent)) for name, extent in (each.rsplit("=", 1) for each in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as batch=8,length=4") from None


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers separated by commas") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _add_launch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `launch`. Options that MXNet's launch.py has too have the same names."""
    parser = commands.add_parser(
        "launch",
        help="starts a job of workers and servers: on this host, by ssh, by Slurm or Grid Engine, or on Kubernetes",
        allow_abbrev=False,  # argparse takes options of the program for ambiguous abbreviations of its own
    )
    add = parser.add_argument
    add("-n", "--num-workers", type=int, required=True, metavar="N", help="workers")
    add("-s", "--num-servers", type=int, default=0, metavar="S", help="parameter servers (default: 0)")
    add(
        "-H", "--hostfile", default="", metavar="FILE", help="a line for each host: HOST, or HOST slots=N for N workers"
    )
    add(
        "--launcher",
        metavar="local|direct|mpi|ssh|slurm|sge|kubernetes",
        help="the way to start the job (default: ssh with -H, otherwise local; direct where there is no mpirun of Open MPI)",
    )
    add("--sync-dst-dir", default="", metavar="DIR", help="ssh: copies the working directory to DIR on each host")
    add("--interface", metavar="ib0", help="the network card between hosts (default: DMLC_INTERFACE, if that is set)")
    settings = "an environment variable of {}; NAME alone has the value that is set here"
    for option, whom in (("--env", "all ranks"), ("--env-worker", "workers"), ("--env-server", "servers")):
        add(option, action="append", default=[], metavar="NAME[=VALUE]", help=settings.format(whom))
    add("--tolerate-workers", action="store_true", help="continues without workers that die")
    add("--image", default="", help="kubernetes: the image of the containers")
    add(
        "--submit-option", action="append", default=[], metavar="OPTION", help="slurm, sge: an option of sbatch or qsub"
    )
    add("--dry-run", action="store_true", help="prints the commands and files without running them")
    add(
        "program",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM …",
        help="the program of each worker, such as python train.py",
    )
    parser.set_defaults(run=_launch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lockstep", description="Lockstep, a graph compiler for data-parallel training."
    )
    version = runpy.run_path(str(PACKAGE / "_version.py"))["VERSION"]
    parser.add_argument("--version", action="version", version=f"lockstep {version}")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor", help="shows what this machine has, what is missing, and the command that installs it"
    )
    doctor.add_argument(
        "--measure",
        metavar="FILE",
        help="under mpirun: instead of the report, measures collectives, and writes a machine file for `lockstep forecast`. "
        "Run it with all ranks on one host, and with one rank on each host: the second run adds to the file of the first",
    )
    doctor.set_defaults(run=_doctor)
    status = commands.add_parser(
        "status", help="shows what each rank of a job on this host is doing, and which rank is late"
    )
    status.add_argument(
        "job",
        nargs="?",
        default="",
        help="its name, or the process number of mpirun or of a rank (default: the newest job)",
    )
    status.add_argument(
        "--metrics",
        action="store_true",
        help="prints the text format of Prometheus instead (without a job: of all jobs on this host)",
    )
    status.set_defaults(run=_status)
    report = commands.add_parser("report", help="shows how a job that ran with LOCKSTEP_TRACE=FOLDER spent its time")
    report.add_argument("folder", help="the FOLDER, of which the newest job is used, or the folder of one job in it")
    report.add_argument("--html", help="the path of the page (default: report.html beside the trace)")
    report.set_defaults(run=_report)
    elastic = commands.add_parser(
        "elastic",
        help="runs a job that continues when a rank or a host dies: in the processes of the others, or by another mpirun",
        allow_abbrev=False,  # likewise, of mpirun's
    )
    elastic.add_argument("--restart", type=int, default=3, metavar="N", help="restarts at most N times (default: 3)")
    elastic.add_argument("-n", type=int, metavar="N", help="the number of ranks on this host, without mpirun")
    elastic.add_argument("--hosts", metavar="HOST:N,…", help="the hosts, with their numbers of ranks")
    elastic.add_argument(
        "--min-ranks",
        type=int,
        metavar="M",
        help="continues as long as M ranks remain (default: 1; with mpirun, the ranks of all --hosts)",
    )
    elastic.add_argument(
        "launch",
        nargs=argparse.REMAINDER,
        metavar="-- PROGRAM …",
        help="the program of each rank, which calls lockstep.elastic.run; or mpirun and its arguments",
    )
    elastic.set_defaults(run=_elastic)
    serve = commands.add_parser(
        "serve",
        help="runs a parameter server, as a rank of a job: mpirun -n N PROGRAM : -n S python -m lockstep serve, with "
        "LOCKSTEP_WORKERS=N and LOCKSTEP_SERVERS=S in the environment of all",
    )
    serve.add_argument(
        "--timeout", type=_seconds, default=600.0, metavar="SECONDS", help="time for all ranks to arrive (default: 600)"
    )
    serve.set_defaults(run=_serve)
    _add_launch(commands)
    forecast = commands.add_parser("forecast", help="estimates the time of a traced step on more hosts")
    forecast.add_argument("trace", help="the FOLDER of a job that ran with LOCKSTEP_TRACE=FOLDER")
    forecast.add_argument("machine", help="a file that `lockstep doctor --measure` wrote, perhaps changed")
    forecast.add_argument(
        "--hosts",
        type=_numbers,
        default=[],
        metavar="1,2,4",
        help="numbers of hosts (default: the powers of 2 from 1 to 1024)",
    )
    forecast.add_argument("--picture", metavar="FILE", help="the path of a picture: .svg or .png")
    forecast.set_defaults(run=_forecast)
    verify = commands.add_parser(
        "verify", help="proves in exact arithmetic that n ranks compute what one computes, without starting them"
    )
    verify.add_argument(
        "file",
        help="an ONNX model, of which a training step is made; a graph that Graph.save wrote; or, with a second file, the "
        "HLO text of a program before XLA's pass spmd-partitioning",
    )
    verify.add_argument("after", nargs="?", help="the HLO text of the program after that pass")
    verify.add_argument(
        "--ranks",
        type=_numbers,
        default=[],
        metavar="2,4",
        help="numbers of ranks (default: those of the strategy's mesh, or 2 and 4)",
    )
    verify.add_argument("--strategy", default="", metavar="TEXT", help="options of compile, as wire=bf16,factors=true")
    verify.add_argument(
        "--dims", type=_extents, default=[], metavar="batch=8,…", help="the extents of an ONNX model's dimensions"
    )
    verify.add_argument("--no-shrink", action="store_true", help="compare large programs as they are, which takes long")
    verify.set_defaults(run=_verify)
    for command in (report, forecast):
        command.add_argument("--calls", type=int, help="the number of last calls that count (default: all)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    if parsed.command == "doctor" and parsed.measure is None:
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
