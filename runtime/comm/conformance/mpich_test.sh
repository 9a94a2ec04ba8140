#!/bin/bash
# Runs the conformance suite under MPICH's mpiexec, with both of its libraries: that with MPICH's own binary interface, and
# that with the standard one of MPI 5.0. Kills a rank, which ends the job.
#   mpich_test.sh mpi_main
set -u
program=$PWD/$1
mpich=$PWD/external/mpich
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failures=0

# library, ranks, further arguments: the suite passes with this number of ranks.
suite() {
  local library=$1 ranks=$2 status ran
  shift 2
  LOCKSTEP_MPI_LIBRARY=$mpich/lib/$library timeout 200 "$mpich/bin/mpiexec" -n "$ranks" "$program" "$ranks" "$@" >"$out" 2>&1
  status=$?
  ran=$(grep -cE "^rank [0-9]+ of $ranks on .*: [1-9][0-9]* cases passed$" "$out")
  echo "$library, $ranks ranks $*: $(grep -m1 -o '[0-9]* cases passed' "$out") on each"
  [ $status -eq 0 ] && [ "$ran" -eq "$ranks" ] && return
  echo "FAILED: $library, $ranks ranks $*: exit status $status, $ran ranks passed"
  cat "$out"
  failures=$((failures + 1))
}

for library in libmpi.so.12 libmpi_abi.so.1; do
  suite $library 3
  suite $library 4 max_group=2 by_mpi=all
done

# mpiexec ends the job when a rank dies.
LOCKSTEP_MPI_LIBRARY=$mpich/lib/libmpi.so.12 timeout 60 "$mpich/bin/mpiexec" -n 3 "$program" 3 die=1 >"$out" 2>&1
status=$?
if [ $status -eq 0 ] || [ $status -eq 124 ] || ! grep -qi "killed\|died while rank" "$out"; then
  echo "FAILED: rank 1 died: exit status $status"
  cat "$out"
  failures=$((failures + 1))
fi

exit $((failures > 0))
