#!/bin/bash
# Runs the conformance suite under mpirun and counts the ranks; kills a rank and checks which rank is blamed.
#   mpi_test.sh mpi_main
set -u
program=$1
# Open MPI unloads its plugins at the end, so the leak checker cannot distinguish their memory from ours.
export ASAN_OPTIONS=detect_leaks=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
out=$(mktemp)
trap 'rm -f "$out"' EXIT
launch=(mpirun --oversubscribe -np)
. "$(dirname "$0")/mpi_suite.sh"

# Awaits the background jobs. A failed one prints its reason and has a status other than 0.
await_all() {
  local job
  for job in $(jobs -p); do wait "$job" || failures=$((failures + 1)); done
}

# Runs several at a time, because ranks wait most of the time. With max_group, there are groups of ranks without shared
# memory, as on several hosts.
suite 3 &
suite 4 max_group=2 &
moments=40
if [ -z "${LOCKSTEP_SANITIZED:-}" ]; then
  suite 3 max_group=2 in_rank_order &
  suite 4 max_group=2 by_mpi=all &
fi
await_all
if [ -n "${LOCKSTEP_TEST_EVERYTHING:-}" ]; then
  for ranks in 1 2 4 7; do suite $ranks & done
  await_all
  suite 2 max_group=1 &
  suite 3 max_group=2 &
  suite 4 max_group=2 in_rank_order &
  suite 2 max_group=1 by_mpi=all &
  await_all
  moments="0 40 90"
fi

# A rank dies. The survivors get its name within 5 s, if mpirun lets them live (it is asked to).
timeout 60 mpirun --oversubscribe --enable-recovery -np 3 "$program" 3 die=1 >"$out" 2>&1
took=$(($(date +%s%3N) - $(sed -n 's/^the victim dies at \([0-9]*\) ms$/\1/p' "$out")))
named=$(grep -cE '^rank [02] learns: .*rank 1 on host .* died while rank [02] on host .* waited in all_reduce sum f32\[1000\] `bucket 1`' "$out")
[ "$named" -eq 2 ] || fail "rank 1 died: $named of 2 survivors named it"
[ "$took" -lt 5000 ] || fail "rank 1 died: it took $took ms to end"
echo "a dead rank is named by $named survivors, all over after $took ms"

# Without this option, mpirun ends the job itself and names the rank.
timeout 60 mpirun --oversubscribe -np 3 "$program" 3 die=1 >"$out" 2>&1 && fail "rank 1 died: exit status 0"
grep -qE 'rank 1 |died while rank' "$out" || fail "rank 1 died: nobody says so"

# stopped rank, ranks, further arguments: all others name the stopped rank and no other rank.
stop() {
  local victim=$1 ranks=$2 failures=0 named out
  shift 2
  out=$(mktemp)
  timeout 60 mpirun --oversubscribe --enable-recovery -np "$ranks" "$program" "$ranks" "stop=$victim" "$@" >"$out" 2>&1
  named=$(grep -cE "^rank [0-9]+ learns: DEADLINE_EXCEEDED: rank [0-9]+ on host [^ ]+ waited 4s in all_reduce max [^;]* for rank $victim on host [^ ;]+: [a-z, ]+$" "$out")
  [ "$named" -eq $((ranks - 1)) ] || fail "rank $victim of $ranks stopped ($*): $named of the others blamed it alone"
  echo "a stopped rank $victim of $ranks is named by $named others ($*): $(grep -m1 learns "$out")"
  rm -f "$out"
  [ "$failures" -eq 0 ]
}
# Ranks of one host that cannot open each other's memory communicate as if they were on two hosts, and print this once.
# Arguments: the command that starts rank 1.
apart() {
  local failures=0 out ran only=only=all_reduce
  [ -z "${LOCKSTEP_TEST_EVERYTHING:-}" ] || only=
  out=$(mktemp)
  timeout 120 mpirun --oversubscribe -np 2 bash -c "if [ \$OMPI_COMM_WORLD_RANK = 1 ]; then exec $* $program 2 $only; else exec $program 2 $only; fi" \
    >"$out" 2>&1 || fail "rank 1 by $*: exit status $?"
  ran=$(grep -cE "^rank [01] of 2 on .*: [1-9][0-9]* cases passed$" "$out")
  [ "$ran" -eq 2 ] || fail "rank 1 by $*: $ran of 2 ranks passed"
  [ "$1" != setpriv ] || grep -q 'ranks 0 to 1 .* share no memory' "$out" || fail "nobody says that ranks share no memory"
  echo "rank 1 by $*: $(grep -m1 'share no memory' "$out" || echo 'in groups of their own')"
  rm -f "$out"
  [ "$failures" -eq 0 ]
}

# MPI's call, the seconds by which rank 1 is late for it, the number of messages, and the seconds until then: ranks that
# are late for MPI_Init, or for which MPI_Finalize waits, are named meanwhile.
late() {
  local call=$1 by=$2 expected=$3 after=${4:-} failures=0 named out
  out=$(mktemp)
  timeout 60 mpirun --oversubscribe -np 3 "$program" 3 "late_$call=1" "by=$by" >"$out" 2>&1 || fail "late for MPI_$call: exit status $?"
  named=$(grep -cE "^lockstep: rank [02] on host .* has waited ${after:-[0-9]+} s in MPI_$call for rank 1$" "$out")
  [ "$named" -eq "$expected" ] || fail "rank 1 is $by s late for MPI_$call: $named others named it, expected $expected"
  echo "a rank that is $by s late for MPI_$call is named by $named others"
  rm -f "$out"
  [ "$failures" -eq 0 ]
}

# name, expected success of the job, a pattern of lines, mpirun's arguments: both ranks print such a line.
both_say() {
  local what=$1 succeeds=$2 pattern=$3 failures=0 named out status
  shift 3
  out=$(mktemp)
  timeout 60 mpirun --oversubscribe "$@" >"$out" 2>&1
  status=$?
  [ $succeeds = $((status == 0)) ] || fail "$what: exit status $status"
  named=$(grep -cE "$pattern" "$out")
  [ "$named" -ge 2 ] || fail "$what: $named of 2 say so"
  echo "$what: $named say so"
  rm -f "$out"
  [ "$failures" -eq 0 ]
}

# The following tests mostly wait, so they run at once. A rank is stopped before its collective and during large ones,
# with and without groups, as the first rank of a group or not.
for after in $moments; do
  stop 1 3 after=$after &
  stop 3 4 max_group=2 after=$after &
  stop 2 4 max_group=2 after=$after &
  stop 1 3 max_group=1 after=$after &
  await_all
done
late Init 5 2 3 &
late Finalize 5 0 &
late Finalize 32 2 30 &
if [ "$(id -u)" = 0 ] && setpriv --bounding-set=-sys_ptrace true && unshare --user --pid --fork --mount-proc true; then
  apart setpriv --bounding-set=-sys_ptrace &
  [ -n "${LOCKSTEP_SANITIZED:-}" ] || apart unshare --user --map-root-user &
  apart unshare --pid --fork --mount-proc &
else
  echo "SKIPPED: namespaces and capabilities, which this machine or user may not change"
fi
# One rank cannot be in a group of its own, because MPI was initialised for one thread: all ranks get an error that
# names it. With TCP it can.
both_say "MPI for one thread" 1 \
  "^rank [01] learns: FAILED_PRECONDITION: rank 1: MPI can carry messages between hosts only with MPI_THREAD_MULTIPLE, .* thread level 0;" \
  -np 2 "$program" 2 max_group=1 by_mpi=all single=1 &
both_say "MPI for one thread, which TCP does not need" 1 "^rank [01] learns: OK$" -np 2 "$program" 2 max_group=1 single=1 &
# Ranks with different options get an error.
both_say "other transports" 0 "between_hosts is tcp on rank 0, and mpi on rank 1 on host" -np 2 "$program" 2 only=Roster max_group=1 by_mpi=1 &
both_say "other orders" 0 "order is any on rank 0, and rank on rank 1 on host" -np 1 "$program" 2 only=Roster : -np 1 "$program" 2 only=Roster in_rank_order &
both_say "other routes" 0 "routes is default on rank 0, and measured on rank 1 on host" -np 2 "$program" 2 only=Roster measured=1 &
await_all

exit $((failures > 0))
