#!/bin/bash
# Runs the conformance suite under MPICH's mpiexec, with both of its libraries: that with MPICH's own binary interface,
# and that with the standard one of MPI 5.0. Kills a rank, which ends the job.
#   mpich_test.sh mpi_main
set -u
program=$PWD/$1
mpich=$PWD/external/mpich
out=$(mktemp)
trap 'rm -f "$out"' EXIT
launch=("$mpich/bin/mpiexec" -n)
. "$(dirname "$0")/mpi_suite.sh"

for library in libmpi.so.12 libmpi_abi.so.1; do
  echo "$library:"
  export LOCKSTEP_MPI_LIBRARY=$mpich/lib/$library
  suite 3 || failures=$((failures + 1))
  suite 4 max_group=2 by_mpi=all || failures=$((failures + 1))
done

# mpiexec ends the job when a rank dies.
timeout 60 "${launch[@]}" 3 "$program" 3 die=1 >"$out" 2>&1
status=$?
if [ $status -eq 0 ] || [ $status -eq 124 ] || ! grep -qi "killed\|died while rank" "$out"; then
  fail "rank 1 died: exit status $status"
fi

exit $((failures > 0))
