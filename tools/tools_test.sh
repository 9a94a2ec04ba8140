#!/bin/sh
# lockstep-run on a training step: it agrees with the interpreter, prints what it is asked for, and fails with a message.
set -u
run=tools/lockstep-run
step=tools/testdata/mlp_step.ir
failures=0

# expect CODE TEXT ARGUMENTS...: the exit code, and what stands in the output.
expect() {
  code=$1 text=$2
  shift 2
  output=$("$run" "$@" 2>&1)
  found=$?
  if [ "$found" -ne "$code" ] || ! printf '%s' "$output" | grep -qF -- "$text"; then
    printf 'FAILED: lockstep-run %s\n  exit code %s, expected %s; expected in its output: %s\n%s\n' "$*" "$found" "$code" "$text" "$output"
    failures=$((failures + 1))
  fi
}

expect 0 "equal   loss f32[]" "$step" --compare
expect 0 "equal   state w0 f32[32,20]" "$step" --compare --ranks=2 --threads=2
expect 0 "equal   loss f32[]" "$step" --compare --ranks=4 --nooptimize
expect 0 "all_reduce.start" "$step" --ranks=2 --print_steps
expect 0 "all_reduce" "$step" --ranks=2 --print_graph
expect 0 "5 runs: median" "$step" --repeat=5 --profile
expect 0 "loss = dense<f32[]" "$step" --print_results
expect 1 "--compare" --help  # Abseil ends with 1 after its help
expect 1 "cannot read nothing.ir" nothing.ir
expect 1 "there is no backend \"abacus\" in this build" "$step" --backend=abacus
expect 1 "--ranks and --threads must be at least 1" "$step" --ranks=0
expect 1 "%x" "$step" --ranks=3
exit "$failures"
