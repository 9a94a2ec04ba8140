"""`lockstep elastic` without mpirun: processes remain when another one dies, and their states are those of an
undisturbed run, bit for bit.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import MLP_SPLIT
from elastic_member import BATCH, MLP
from lockstep import elastic
from lockstep._launch.generations import (
    BLAME_SECONDS,
    CALM_SECONDS,
    RETURN_SECONDS,
    START_SECONDS,
    STUCK_SECONDS,
    Generations,
    Message,
)
from lockstep.elastic._copies import Copies
from ranks import errors_of, run_in_threads
from test_errors import raises

HERE = Path(__file__).parent
LOCKSTEP = HERE.parents[1] / "tools" / "lockstep"
PROGRAM = HERE / "elastic_member.py"
sys.path += [str(HERE.parent / "faults"), str(HERE.parent / "hosts")]

from elastic_kills import is_alive, lines_of, undisturbed
from hosts import Hosts, why_not

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SAY = "lockstep elastic: "


def started(*arguments: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [LOCKSTEP, "elastic", *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)


def run_program(text: str, *options: Any) -> tuple[int, str, str]:
    """Runs a program on elastic ranks; returns the exit code, the output and the errors."""
    job = started(*options, "--", sys.executable, "-c", text)
    stdout, stderr = job.communicate(timeout=120)
    return job.returncode, stdout, stderr


def wait_for_step(folder: Path, step: int, processes: int) -> None:
    """Waits until so many processes have completed the step."""
    end = time.monotonic() + 60
    while sum(bool(lines) and lines[-1].step >= step for lines in lines_of(folder).values()) < processes:
        assert time.monotonic() < end, "the ranks do not train"
        time.sleep(0.02)


def wait_for_ranks(folder: Path, ranks: int, seconds: float) -> None:
    """Waits until a step of so many ranks is completed from now on."""
    begin = time.time()
    while not any(lines and lines[-1].time > begin and lines[-1].ranks == ranks for lines in lines_of(folder).values()):
        assert time.time() < begin + seconds, f"there are no {ranks} ranks"
        time.sleep(0.02)


def results_of(folder: Path) -> list[dict[str, str]]:
    results = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return [result for result in results if result is not None]


def test_the_others_go_on_in_their_processes_with_the_same_bits(tmp_path: Path) -> None:
    """Of four ranks one dies, then two ranks train and one waits; then another dies, and two train."""
    steps = 60
    job = started("--restart", 0, "-n", 4, "--", sys.executable, PROGRAM, tmp_path, steps, 0.05)
    wait_for_step(tmp_path, 5, 4)
    first = sorted(lines_of(tmp_path))
    for ranks in (4, 2):
        lines = lines_of(tmp_path)
        stepping = [each for each in first if is_alive(each) and lines[each][-1].ranks == ranks]
        os.kill(stepping[-1], signal.SIGKILL)
        wait_for_step(tmp_path, max(lines[each][-1].step for each in first) + 10, 2)
    stderr = job.communicate(timeout=120)[1]
    assert job.returncode == 0, stderr
    lines = lines_of(tmp_path)
    assert sorted(lines) == first, "no process is new"
    assert sorted(len({line.ranks for line in lines[each]}) for each in first) == [1, 2, 2, 2]
    assert results_of(tmp_path) == [undisturbed(steps)] * 2
    assert re.search(r"world 2 has 2 ranks, members \d, \d, and 1 wait\n", stderr)
    assert re.search(r"world 3 has 2 ranks, members \d, \d\n", stderr)


def test_a_step_is_lost_at_most(tmp_path: Path) -> None:
    """After a kill, the next world begins at most one step before the last one that was completed."""
    job = started("--restart", 0, "-n", 4, "--", sys.executable, PROGRAM, tmp_path, 40, 0.03)
    wait_for_step(tmp_path, 5, 4)
    os.kill(sorted(lines_of(tmp_path))[2], signal.SIGKILL)
    assert job.wait(120) == 0
    lines = [line for each in lines_of(tmp_path).values() for line in each]
    before = max(line.step for line in lines if line.ranks == 4)
    after = min(line.step for line in lines if line.ranks == 2)
    assert before <= after <= before + 1
    job.communicate()


def test_killed_processes_are_replaced_at_any_moment(tmp_path: Path) -> None:
    """Five kills at random moments: in a step, while ranks meet, or while they compile."""
    steps, moments = 400, random.Random(7)
    job = started("--restart", 5, "-n", 4, "--", sys.executable, PROGRAM, tmp_path, steps, 0.03)
    wait_for_step(tmp_path, 1, 4)
    for _ in range(5):
        time.sleep(moments.uniform(0.0, 2.0))
        while len(victims := [each for each in lines_of(tmp_path) if is_alive(each)]) < 2:
            time.sleep(0.1)  # with the last one, its copy of the states would be gone
        os.kill(moments.choice(victims), signal.SIGKILL)
    stderr = job.communicate(timeout=200)[1]
    assert job.returncode == 0, stderr
    assert len(lines_of(tmp_path)) > 4, "new processes were ranks"
    assert max(line.step for lines in lines_of(tmp_path).values() for line in lines) == steps
    results = results_of(tmp_path)
    assert results and all(result == undisturbed(steps) for result in results)


def test_split_states_come_from_the_partner_of_a_rank_that_dies(tmp_path: Path) -> None:
    """Ranks split the states of the optimizer; the oracle is a run in which nothing is split."""
    steps = 80
    program = [sys.executable, PROGRAM, tmp_path, steps, 0.05, "shard_optimizer"]
    job = started("--restart", 1, "-n", 4, "--", *program)
    wait_for_step(tmp_path, 5, 4)
    os.kill(sorted(lines_of(tmp_path))[2], signal.SIGKILL)
    stderr = job.communicate(timeout=120)[1]
    assert job.returncode == 0, stderr
    sizes = [line.ranks for lines in lines_of(tmp_path).values() for line in lines]
    assert {2, 4} == set(sizes), "two ranks trained until the new process joined"
    assert results_of(tmp_path) == [undisturbed(steps)] * 4


@pytest.mark.skipif(bool(why_not()), reason=f"no hosts here: {why_not()}")
def test_a_host_that_is_cut_off_is_left_out_and_joins_when_it_is_back(tmp_path: Path) -> None:
    """The second host is cut off: within 10 s the first one goes on. Within 30 s after that the second one trains, too.
    A third host never answers.
    """
    steps = 1200
    with Hosts(2) as hosts:
        places = ",".join(f"{name}:2" for name in (*hosts.names, "nowhere"))
        options = ["--restart", "9", "--hosts", places]
        program = [sys.executable, PROGRAM, tmp_path, steps, 0.02, "shard_optimizer"]
        command = hosts.on_first(LOCKSTEP, "elastic", *options, "--", *program)
        environment = {
            **hosts.environment(),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(HERE.parents[1] / "python_bindings"),
        }
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as job:
            wait_for_step(tmp_path, 20, 4)
            hosts.set_switch(1, False)
            wait_for_ranks(tmp_path, 2, 10.0)
            hosts.set_switch(1, True)
            wait_for_ranks(tmp_path, 4, 30.0)
            stderr = job.communicate(timeout=120)[1]
    assert job.returncode == 0, stderr
    assert "lockstep elastic: host nowhere is lost\n" in stderr
    results = results_of(tmp_path)
    assert len(results) == 4 and all(result == undisturbed(steps) for result in results)


def test_an_error_of_the_program_ends_the_job() -> None:
    program = """
import lockstep as ls
from lockstep import elastic
def train(job):
    if job.world.rank == 1:
        raise ls.Error("there is no such file")
    job.world.barrier()
elastic.run(train)
"""
    code, _, stderr = run_program(program, "-n", 2, "--restart", 5)
    assert code == 1
    assert "member 2" not in stderr, "it would have the same error"
    assert "[member 1] lockstep._base.errors.Error: there is no such file" in stderr.replace(
        "lockstep.Error", "lockstep._base.errors.Error"
    )
    assert f"{SAY}the job has failed" in stderr


def test_a_job_without_enough_ranks_fails() -> None:
    program = """
import os, signal
from lockstep import elastic
def train(job):
    if job.world.size == 3 and job.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    job.world.barrier()
elastic.run(train)
"""
    code, _, stderr = run_program(program, "-n", 3, "--restart", 0, "--min-ranks", 3)
    assert code == 137
    assert f"{SAY}the job has failed: 2 ranks are left, and 3 are needed" in stderr
    code, _, stderr = run_program(program, "-n", 3, "--restart", 0, "--min-ranks", 2)
    assert code == 0, stderr


def test_an_exception_costs_only_its_process() -> None:
    program = """
import lockstep as ls
from lockstep import elastic
def train(job):
    if job.world.size == 2 and job.world.rank == 0:
        raise ValueError("no more memory")
    job.world.barrier()
    return job.world.size
print(elastic.run(train))
"""
    code, stdout, stderr = run_program(program, "-n", 2, "--restart", 0)
    assert (code, stdout) == (0, "[member 1] 1\n"), stderr
    assert "[member 0] ValueError: no more memory" in stderr


def test_the_exit_code_is_that_of_a_rank_after_the_job() -> None:
    program = (
        "import sys; from lockstep import elastic; rank = elastic.run(lambda job: job.world.rank); sys.exit(5 * rank)"
    )
    assert run_program(program, "-n", 2)[0] == 5


def test_a_program_that_is_not_elastic() -> None:
    code, _, stderr = run_program("print(1)", "-n", 2)
    assert code == 1
    assert f"{SAY}the job has failed: the program has ended without a call of lockstep.elastic.run" in stderr


def test_nothing_remains_when_the_command_is_killed(tmp_path: Path) -> None:
    job = started("-n", 2, "--", sys.executable, PROGRAM, tmp_path, 100000, 0.01)
    wait_for_step(tmp_path, 1, 2)
    job.kill()
    job.communicate()
    end = time.monotonic() + 15
    while any(map(is_alive, lines_of(tmp_path))):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_without_lockstep_elastic_there_is_one_world() -> None:
    assert elastic.run(lambda job: job.world.size) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "python3", "a.py"], "the command after -- is python3, expected mpirun; a program that calls"),
        (["-n", "2", "--hosts", "h0", "--", "python3"], "-n is for ranks on this host: leave it out, or --hosts"),
        (["-n", "0", "--", "python3"], "-n is 0, expected at least 1"),
        (["-n", "2", "--", "mpirun", "true"], "-n is for a program without mpirun"),
        (["-n", "2", "--min-ranks", "3", "--", "python3"], "--min-ranks is 3, expected 1 to 2, the ranks at the start"),
        (["-n", "2", "--", "no-such-program"], "there is no program no-such-program on this host"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    job = started(*arguments)
    stderr = job.communicate(timeout=30)[1]
    assert (job.returncode, stderr.startswith(SAY + message)) == (1, True), stderr


STEP = """
graph @step(%x: f32[8,2] split(0), state %w: f32[2]) -> (%w: f32[2]) {
  %s = reduce_sum %x {dims=[0]} : f32[2]
  %w1 = sgd %w, %s {learning_rate=0.5} : f32[2]
  return %w1
}
"""


def job_of(world: ls.Communicator) -> elastic.Job:
    return elastic.Job(world, Copies(), None)


def test_a_step_needs_the_executable_that_was_adopted() -> None:
    world = ls.Communicator.single()
    job, exe = job_of(world), ls.compile(ls.parse(STEP), world=world)
    with raises("step: the executable was not adopted"):
        job.step(exe, x=np.ones((8, 2), np.float32))
    found = []
    assert not job.adopt(exe, otherwise=lambda: found.append(True))
    assert found == [True]
    with raises("adopt: this world has an executable already"):
        job.adopt(exe)
    job.step(exe, x=np.ones((8, 2), np.float32))
    assert exe.step == 1


def mlp_step() -> ls.Graph:
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), MLP.optimizer)


def sharded(world: ls.Communicator) -> ls.Executable:
    return ls.compile(mlp_step(), world=world, virtual_ranks=8, threads=1, shard_optimizer=True)


def whole_states(exe: ls.Executable) -> dict[str, bytes | None]:
    values = {state.name: exe._read_whole(state.name) for state in exe._whole_states()}
    return {name: None if value is None else value.tobytes() for name, value in values.items()}


def copies_of(ranks: int, steps: int) -> list[tuple[Copies, dict[str, bytes | None]]]:
    """The copies that ranks have after some steps, and on rank 0 the states, as bytes."""
    samples, labels = (each[:BATCH] for each in MLP.data())

    def train(world: ls.Communicator) -> tuple[Copies, dict[str, bytes | None]]:
        copies, exe = Copies(), sharded(world)
        copies.begin(exe, world)
        rows = slice(world.rank * BATCH // ranks, (world.rank + 1) * BATCH // ranks)
        for _ in range(steps):
            exe(x=samples[rows], label=labels[rows])
            copies.take(exe)
        return copies, whole_states(exe)

    return run_in_threads(ranks, train)


def collected(copies: list[Copies]) -> Any:
    """What ranks with these copies make of them: the number of steps and the states of rank 0."""

    def collect(world: ls.Communicator) -> tuple[int, dict[str, bytes | None]]:
        own, exe = copies[world.rank], sharded(world)
        own.collect(world)
        assert not own.is_in_parts
        assert own.give(exe, world)
        return exe.step, whole_states(exe)

    return run_in_threads(len(copies), collect)


def test_what_four_ranks_split_is_made_whole_by_two_that_are_left() -> None:
    expected = copies_of(1, 3)[0][1]
    four = [copies for copies, _ in copies_of(4, 3)]
    assert all(copies.is_in_parts for copies in four)
    results = collected([four[1], four[3]])  # each of them is the partner of another one
    assert results[0] == (3, expected)
    assert results[1][0] == 3


def test_a_step_that_some_ranks_have_not_completed_is_not_taken() -> None:
    expected = copies_of(1, 2)[0][1]
    four = [copies for copies, _ in copies_of(4, 3)]
    four[1]._copies.pop()  # rank 1 died before its partner, rank 2, and rank 3 had completed step 3
    four[2]._copies.pop()
    assert collected([four[0], four[2], four[3], Copies()])[0] == (2, expected)


def test_weights_in_shared_memory_are_copied_too() -> None:
    samples, labels = (each[:BATCH] for each in MLP.data())

    def compiled(world: ls.Communicator) -> ls.Executable:
        return ls.compile(mlp_step(), world=world, threads=1, shared_weights=True)

    def run(exe: ls.Executable, world: ls.Communicator) -> None:
        rows = slice(world.rank * BATCH // 2, (world.rank + 1) * BATCH // 2)
        exe(x=samples[rows], label=labels[rows])

    def train(world: ls.Communicator) -> tuple[Copies, dict[str, bytes | None]]:
        copies, exe = Copies(), compiled(world)
        copies.begin(exe, world)
        for _ in range(2):
            run(exe, world)
            copies.take(exe)
        run(exe, world)
        return copies, whole_states(exe)

    trained = run_in_threads(2, train)

    def go_on(world: ls.Communicator) -> dict[str, bytes | None]:
        copies, exe = trained[world.rank][0], compiled(world)
        copies.collect(world)
        assert copies.give(exe, world) and exe.step == 2
        run(exe, world)
        return whole_states(exe)

    assert run_in_threads(2, go_on)[0] == trained[0][1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wire": "int8"}, "adopt: state fc3.bias/residual/data belongs to gradients that travel as int8"),
        ({"mesh": {"data": 1, "model": 2}, "split": MLP_SPLIT}, "adopt: state fc1.weight is split(0) along model"),
    ],
)
def test_states_of_which_ranks_make_no_copies(options: dict[str, Any], message: str) -> None:
    def adopt(world: ls.Communicator) -> None:
        exe = ls.compile(mlp_step(), world=world, threads=1, **options)
        elastic.Job(world, Copies(), None).adopt(exe)

    assert all(error.startswith(message) for error in errors_of(2, adopt))


def test_parts_that_are_lost_are_an_error() -> None:
    four = [copies for copies, _ in copies_of(4, 2)]
    for error in collected([four[0], four[1]]):
        assert isinstance(error, ls.Error)
        assert "ranks died together with those that had copies of their parts" in str(error)


def test_parts_stay_lost_in_the_next_world() -> None:
    """A world that breaks after the loss was noticed does not make the job begin from its first weights."""
    four = [copies for copies, _ in copies_of(4, 2)]

    def adopt(world: ls.Communicator) -> int:
        copies, exe = four[world.rank], sharded(world)
        copies.collect(world)
        for _ in range(2):
            with pytest.raises(ls.Error, match="ranks died together"):
                copies.give(exe, world)
        return world.rank

    assert run_in_threads(2, adopt) == [0, 1]


def test_lost_parts_are_taken_from_a_checkpoint() -> None:
    four = [copies for copies, _ in copies_of(4, 2)]

    def adopt(world: ls.Communicator) -> list[str]:
        copies, exe, found = four[world.rank], sharded(world), []
        copies.collect(world)
        job = elastic.Job(world, copies, None)
        assert not job.adopt(exe, otherwise=lambda: found.append("checkpoint"))
        return found

    assert run_in_threads(2, adopt) == [["checkpoint"]] * 2


# --- The worlds of a job, without processes


class Simulated:
    """Members that answer as elastic/_member.py does, with a clock."""

    def __init__(self, members: int, least: int = 1, shares: int = 8) -> None:
        self.now, self.shares = 0.0, shares
        self.generations = Generations(least, 0.0)
        for number in range(members):
            self.generations.add(number, (0, number))

    def say(self, number: int, what: str, step: int = -1, **values: Any) -> None:
        message = {
            "what": what,
            "generation": self.generations.number,
            "step": step,
            "shares": self.shares,
            "parts": False,
        }
        message |= values
        self.generations.hear(number, message, self.now)

    def after(self, seconds: float) -> list[tuple[int, Message]]:
        self.now += seconds
        self.generations.tick(self.now)
        return self.generations.take_messages()

    def form(self, *numbers: int) -> None:
        for number in numbers:
            self.say(number, "ready")
        self.after(0.1)
        assert self.generations.ranks == list(numbers)


def whats(messages: list[tuple[int, Message]]) -> list[tuple[int, str]]:
    return [(number, message["what"]) for number, message in messages]


def test_the_first_world_waits_for_all_members_but_not_for_ever() -> None:
    job = Simulated(4)
    for number in (0, 1, 3):
        job.say(number, "ready")
    assert job.after(START_SECONDS / 2) == []
    messages = job.after(START_SECONDS)
    assert whats(messages) == [(0, "world"), (1, "world")], "three cannot share eight parts"


def test_a_loss_breaks_the_world_and_the_newest_states_remain() -> None:
    job = Simulated(4)
    job.form(0, 1, 2, 3)
    job.generations.lose(1, job.now, "it has died")
    assert whats(job.after(0.0)) == [(0, "broken"), (2, "broken"), (3, "broken")]
    job.say(0, "failed", step=6)
    job.say(2, "ready", step=7)
    assert job.after(RETURN_SECONDS / 2) == [], "member 3 may still come"
    job.say(3, "ready", step=7)
    assert whats(job.after(0.1)) == [(2, "world"), (3, "world")], "member 0 has not completed step 7"


def test_a_member_that_does_not_leave_is_left_out_and_joins_later() -> None:
    job = Simulated(4)
    job.form(0, 1, 2, 3)
    job.generations.lose(1, job.now, "it has died")
    for number in (0, 2):
        job.say(number, "ready")
    job.after(RETURN_SECONDS - 1)
    assert job.generations.is_broken
    job.after(2)
    assert job.generations.ranks == [0, 2]
    job.generations.add(4, (0, 4))
    for number in (3, 4):
        job.say(number, "ready", generation=1)
    assert whats(job.after(100.0)) == [], "the world has not completed a step"
    job.say(0, "stepped")
    assert whats(job.after(0.1)) == [(0, "broken"), (2, "broken")]


def test_worlds_are_not_made_while_members_still_come() -> None:
    job = Simulated(3, shares=0)
    job.form(0, 1, 2)
    job.generations.lose(2, job.now, "it has died")
    job.after(10 * RETURN_SECONDS)
    job.say(1, "ready")
    assert whats(job.after(CALM_SECONDS / 2)) == [], "member 0 compiled as long as member 1, and will come"
    job.say(0, "ready")
    assert whats(job.after(0.1)) == [(0, "world"), (1, "world")]


def test_a_member_that_is_stopped_is_left_out_when_the_others_have_failed() -> None:
    job = Simulated(3)
    for number in range(3):
        job.say(number, "ready")
    job.after(0.1)
    job.say(0, "failed")
    assert job.after(STUCK_SECONDS - 1) == []
    assert whats(job.after(2)) == [(0, "broken"), (1, "broken")]
    assert whats(job.after(RETURN_SECONDS + 1)) == [(0, "world"), (2, "world")]


def test_all_members_with_parts_meet_before_the_next_world_is_made() -> None:
    job = Simulated(4)
    job.form(0, 1, 2, 3)
    job.generations.lose(1, job.now, "it has died")
    for number in (0, 2, 3):
        job.say(number, "ready", step=7, parts=True)
    messages = job.after(0.1)
    assert [message.get("collects") for _, message in messages] == [None, None, None, True, True, True]
    for number in (0, 2):
        job.say(number, "ready", step=6)
    assert job.after(0.1) == []
    job.say(3, "ready", step=6)
    assert whats(job.after(0.1)) == [(0, "world"), (2, "world")]
    assert not job.generations.collects


def test_errors_of_all_members_are_their_own_if_none_is_lost() -> None:
    job = Simulated(2)
    job.form(0, 1)
    job.say(0, "failed")
    assert job.after(STUCK_SECONDS / 2) == [], "member 1 still computes"
    job.say(1, "failed")
    assert job.after(BLAME_SECONDS / 2) == []
    assert whats(job.after(BLAME_SECONDS)) == [(0, "stands"), (1, "stands")]


def test_errors_are_those_of_a_loss_that_is_noticed_later() -> None:
    job = Simulated(2)
    job.form(0, 1)
    for number in (0, 1):
        job.say(number, "failed")
    job.generations.lose(1, job.now, "it has died")
    assert whats(job.after(0.1)) == [(0, "broken"), (0, "world")]


def test_members_that_cannot_meet_try_again() -> None:
    job = Simulated(2)
    job.form(0, 1)
    job.say(0, "gather", call=0, bytes="00")
    job.say(1, "failed")
    assert whats(job.after(BLAME_SECONDS + 1)) == [(0, "broken"), (1, "broken")]
    job.say(0, "ready")
    assert whats(job.after(0.1)) == [(0, "world"), (1, "world")]
    assert job.generations.fruitless == 2


def test_what_ranks_say_is_gathered_by_rank() -> None:
    job = Simulated(2)
    job.form(0, 1)
    job.say(1, "gather", call=0, bytes="01")
    job.say(0, "gather", call=0, bytes="00")
    assert [message["all"] for _, message in job.after(0.0)] == [["00", "01"]] * 2


def test_a_job_is_over_when_all_ranks_have_returned() -> None:
    job = Simulated(3)
    for number in range(3):
        job.say(number, "ready")
    job.after(0.1)
    job.say(0, "done")
    assert job.after(10.0) == []
    job.say(1, "done")
    assert whats(job.after(0.0)) == [(0, "over"), (1, "over"), (2, "over")], "member 2 was none of two ranks"
    assert job.generations.over


def test_messages_about_an_earlier_world_do_not_break_the_present_one() -> None:
    job = Simulated(2)
    job.form(0, 1)
    job.generations.lose(1, job.now, "it has died")
    job.say(0, "failed")
    job.after(0.1)
    job.say(0, "ready", generation=1)
    assert not job.generations.is_broken
