#!/bin/sh
# Runs the programs on a training step: checks what they print, and that failures have messages.
set -u
step=tools/testdata/mlp_step.ir
draws=tools/testdata/draws.ir
failures=0

# expect CODE TEXT TOOL ARGUMENTS...: runs the tool, and checks its exit code and that its output contains TEXT.
expect() {
  code=$1 text=$2 tool=$3
  shift 3
  output=$("tools/$tool" "$@" 2>&1 <"$step")
  found=$?
  if [ "$found" -ne "$code" ] || ! printf '%s' "$output" | grep -qF -- "$text"; then
    printf 'FAILED: %s %s\n  exit code %s, expected %s; expected in its output: %s\n%s\n' "$tool" "$*" "$found" "$code" "$text" "$output"
    failures=$((failures + 1))
  fi
}

expect 0 "equal   loss f32[]" lockstep-run --compare # standard input, as no file is named
expect 0 "equal   state w0 f32[32,20]" lockstep-run "$step" --compare --ranks=2 --threads=2
expect 0 "equal   loss f32[]" lockstep-run "$step" --compare --ranks=4 --strategy=optimize=false
expect 0 "equal   loss f32[]" lockstep-run "$step" --compare --ranks=2 --strategy=virtual_ranks=4
expect 0 "all_gather.start" lockstep-run "$step" --ranks=2 --strategy=virtual_ranks=4 --dry
expect 0 "all_reduce.start" lockstep-run "$step" --ranks=2 --print-steps
expect 0 "all_reduce" lockstep-run "$step" --ranks=2 --print_graph
expect 0 "{body=graph @" lockstep-run "$step" --print-graph
expect 0 "{body=graph of" lockstep-run "$step" --print-graph --brief
expect 0 "5 runs: median" lockstep-run "$step" --repeat=5 --profile
expect 0 "loss = dense<f32[]" lockstep-run "$step" --print_results
expect 0 "cublaslt.matmul+bias+relu" lockstep-run "$step" --backend=cuda --isa=h200 --dry # no GPU needed
expect 0 "all_reduce.start" lockstep-run "$step" --backend=cuda --isa=sm_80 --ranks=2 --dry
expect 0 "onednn.matmul" lockstep-run "$step" --dry
expect 0 "(NVIDIA H200, measured on one)" lockstep-run "$step" --backend=cuda --isa=h200 --dry --roofline
expect 0 "loops joined as far as other kernels allow" lockstep-run "$step" --backend=cuda --isa=h200 --dry --roofline
expect 0 "of this processor, measured)" lockstep-run "$step" --roofline
expect 0 " %  onednn.matmul" lockstep-run "$step" --repeat=5 --profile --roofline
expect 1 "isa is \"h2000\", expected a GPU: a100 (sm_80)" lockstep-run "$step" --backend=cuda --isa=h2000 --dry
expect 1 "--dry runs nothing" lockstep-run "$step" --dry --compare
expect 1 "--dry runs nothing" lockstep-run "$step" --dry --repeat=5
expect 1 "--dry runs nothing" lockstep-run "$step" --dry --print_results
expect 0 "b = dense<u32[4]: 3665613145, 608281940, 2891875743, 2071560639>" lockstep-run "$draws" --seed=9 --print_results
expect 0 "equal   a u32[4]" lockstep-run "$draws" --compare
expect 1 "--compare" lockstep-run --help # Abseil exits with 1 after --help
expect 1 "cannot read nothing.ir" lockstep-run nothing.ir
expect 1 "there is no backend \"abacus\" in this build" lockstep-run "$step" --backend=abacus
expect 0 "equal   loss f32[]" lockstep-run "$step" --compare --strategy='mesh={data=2,model=2},split={w0={model=0}},shard_optimizer=true'
expect 1 "there is no option 'wier'; is wire meant?" lockstep-run "$step" --strategy=wier=bf16
expect 1 "--ranks and --threads must be at least 1" lockstep-run "$step" --ranks=0
expect 1 "%x" lockstep-run "$step" --ranks=3
expect 1 "one file at a time" lockstep-run "$step" "$step"

expect 0 "graph @" lockstep-opt -
expect 0 "all_reduce" lockstep-opt --passes='distribute{data=2}' "$step"
expect 0 "// after simplify" lockstep-opt --passes='legalize{without=sgd_momentum},simplify' --print-changes "$step"
expect 0 "{body=graph of" lockstep-opt --passes='legalize{without=sgd_momentum},fuse-elementwise{min_shared_elements=1}' --brief "$step"
expect 0 " ms  cse" lockstep-opt --passes=cse --time "$step"
expect 0 "merge-collectives{" lockstep-opt --list-passes
expect 1 "--passes" lockstep-opt --help
expect 1 "cannot read nothing.ir" lockstep-opt nothing.ir
expect 1 "training-mode: dropout is 'of', expected on or off" lockstep-opt --passes='training-mode{dropout=of}' "$step"
expect 1 "there is no pass 'prettify'" lockstep-opt --passes=prettify "$step"
expect 1 "tools/tools_test.sh" lockstep-opt tools/tools_test.sh # a message names the file

# With LOCKSTEP_DUMP, the programs write numbered graphs that lockstep-opt can read, and after a failure the graph on
# which a pass failed.
dump=$(mktemp -d)
export LOCKSTEP_DUMP="$dump/passes"
expect 0 "equal   loss f32[]" lockstep-run "$step" --compare --ranks=2
expect 0 "graph @" lockstep-opt --passes=dce,simplify "$step"
export LOCKSTEP_DUMP="$dump/failed"
expect 1 "(reproducer: $dump/failed/" lockstep-opt --passes='dce,distribute{data=3}' "$step"
touch "$dump/file"
export LOCKSTEP_DUMP="$dump/file"
expect 1 "LOCKSTEP_DUMP: cannot create a folder in $dump/file" lockstep-run "$step"
unset LOCKSTEP_DUMP
written=0
for file in "$dump"/passes/*/0*.ir; do
  expect 0 "graph @" lockstep-opt "$file"
  written=$((written + 1))
done
reproducer=$(find "$dump/failed" -name '*.distribute.ir')
expect 1 "pass distribute" lockstep-opt --passes='distribute{data=3}' "$reproducer"
if [ "$written" -lt 3 ] || [ ! -s "$reproducer" ]; then
  printf 'FAILED: LOCKSTEP_DUMP wrote %s graphs and the reproducer "%s"\n' "$written" "$reproducer"
  failures=$((failures + 1))
fi
rm -r "$dump"
exit "$failures"
