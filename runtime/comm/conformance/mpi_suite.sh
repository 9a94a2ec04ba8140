# The conformance suite under an mpirun, for scripts that source this file. They set `program`, which is mpi_main;
# `launch`, the command that starts ranks, up to their number; and `out`, the file with the output of their own checks.
# `failures` counts what failed.

failures=0

fail() {
  echo "FAILED: $1"
  cat "$out"
  failures=$((failures + 1))
}

# ranks, further arguments: the suite passes with this number of ranks, or the status is not 0.
suite() {
  local ranks=$1 failures=0 out
  shift
  out=$(mktemp)
  timeout 120 "${launch[@]}" "$ranks" "$program" "$ranks" "$@" >"$out" 2>&1
  local status=$? ran
  ran=$(grep -cE "^rank [0-9]+ of $ranks on .*: [1-9][0-9]* cases passed$" "$out")
  if [ $status -ne 0 ] || [ "$ran" -ne "$ranks" ]; then
    fail "$ranks ranks $*: exit status $status, $ran ranks passed"
  else
    echo "$ranks ranks $*: $(grep -m1 -o '[0-9]* cases passed' "$out") on each"
  fi
  rm -f "$out"
  [ "$failures" -eq 0 ]
}
