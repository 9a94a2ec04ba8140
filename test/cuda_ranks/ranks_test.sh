#!/bin/bash
# Tests ranks on fake GPUs that mpirun starts. They must learn exactly the same weights as ranks that are threads. If one
# rank dies, stops, differs, leaves or fails, all others must soon end with a message that names it.
#   ranks_test.sh rank_main
set -u
program=$1
# Open MPI unloads its plugins at the end, so the leak checker cannot tell their allocations from ours.
export ASAN_OPTIONS=detect_leaks=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The fakes must be found before NVIDIA's libraries. A second folder has the same libraries except NCCL.
fakes=test/fake_cuda
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/without"
for library in "$fakes"/lib*.so.*; do ln -s "$PWD/$library" "$work/without"; done
rm "$work/without/libnccl.so.2"
echo "not a library" >"$work/without/libnccl.so.2"
# Seconds within which ranks must learn that another is gone. For a stopped rank this takes longer: rank_main sets a
# timeout of two seconds, a GPU's wait may be noticed after twice that, and the search for the culprit may take two
# more.
soon=10 patient=14
if [ -n "${LOCKSTEP_SANITIZED:-}" ]; then soon=60 patient=60; fi

# True if a process has a child that has not ended.
has_children() {
  local child
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
    grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$child/status" && return 0
  done
  return 1
}

# launch OUT COMMAND…: runs the command for at most 100 s (else status 124). An mpirun whose ranks have ended gets two
# more seconds: at the end of a failed job Open MPI 4.1 sometimes waits for ever for one of its own locks.
launch() {
  local out=$1 job had_ranks= alone=0 tick
  shift
  "$@" >"$out" 2>&1 &
  job=$!
  for ((tick = 0; tick < 500; tick++)); do
    kill -0 "$job" 2>/dev/null || break
    if has_children "$job"; then
      had_ranks=1 alone=0
    elif [ -n "$had_ranks" ] && [ $((alone += 1)) -gt 10 ]; then
      kill -KILL "$job"
      break
    fi
    sleep 0.2
  done
  if [ "$tick" -eq 500 ]; then
    kill -TERM "$job"
    sleep 1
    kill -KILL "$job" 2>/dev/null
    wait "$job" 2>/dev/null
    return 124
  fi
  wait "$job" 2>/dev/null
}

# weights_of OUT RANKS LIBRARIES COMMAND…: expects all ranks to print the same weights, and prints them.
weights_of() {
  local out=$1 ranks=$2 libraries=$3 found
  shift 3
  LD_LIBRARY_PATH=$libraries launch "$out" "$@"
  local status=$?
  found=$(grep -oE "^rank [0-9]+ of $ranks over [a-z]+: weights [0-9a-f]{16}" "$out" | sort -u | wc -l)
  if [ $status -ne 0 ] || [ "$found" -ne "$ranks" ]; then
    echo "exit status $status, $found of $ranks ranks: $*"
    return
  fi
  grep -oE "weights [0-9a-f]{16}" "$out" | sort -u | tr '\n' ' '
}

# learn RANKS: compares ranks as processes with ranks as threads, through NCCL and through the host.
learn() {
  local ranks=$1 out=$work/learn$1 failures=0 expected found
  local launch="mpirun --oversubscribe -np $ranks"
  same() {
    if [ "$2" != "$expected" ] || [[ $2 != weights\ ????????????????\  ]]; then
      echo "FAILED: $ranks ranks, $1: $2, expected $expected"
      cat "$out"
      failures=1
    fi
  }
  expected=$(weights_of "$out" "$ranks" "$fakes" "$program" threads="$ranks" over=nccl)
  same "threads by NCCL" "$expected"
  same "processes by NCCL" "$(weights_of "$out" "$ranks" "$fakes" $launch "$program" over=nccl)"
  [ "$(grep -c ' 4 launches of a graph$' "$out")" -eq "$ranks" ] || { echo "FAILED: no graph was launched"; failures=1; }
  expected=$(weights_of "$out" "$ranks" "$work/without" "$program" threads="$ranks" over=host)
  same "threads by the host" "$expected"
  same "processes that share a GPU" "$(weights_of "$out" "$ranks" "$fakes" $launch "$program" gpus=1 over=host)"
  grep -q "rank 0 on host .* and rank 1 share a GPU" "$out" || { echo "FAILED: no note says why"; failures=1; }
  same "threads that share a GPU" "$(weights_of "$out" "$ranks" "$fakes" "$program" threads="$ranks" gpus=1 over=host)"
  same "one process without NCCL" "$(weights_of "$out" "$ranks" "$fakes" $launch \
    bash -c "[ \$OMPI_COMM_WORLD_RANK != 1 ] || export LD_LIBRARY_PATH=$work/without; exec $program over=host")"
  grep -q "rank 1 on host .* has no NCCL" "$out" || { echo "FAILED: no note says why"; failures=1; }
  [ "$failures" -eq 0 ] && echo "$ranks ranks learn the same as threads: $expected"
}

# The same on a mesh of two axes, each with its own communicator.
learn_along_two_axes() {
  local out=$work/mesh expected found
  expected=$(weights_of "$out" 4 "$fakes" "$program" threads=4 model=2 over=nccl)
  found=$(weights_of "$out" 4 "$fakes" mpirun --oversubscribe -np 4 "$program" model=2 over=nccl)
  if [[ $expected != weights\ ????????????????\ weights\ ????????????????\  ]] || [ "$found" != "$expected" ] ||
    [ "$(grep -c ' 4 launches of a graph$' "$out")" -ne 4 ]; then
    echo "FAILED: two axes: $found, threads: $expected"
    cat "$out"
    return 1
  fi
  echo "ranks of two axes learn the same as threads: $expected"
}

# One process has another version of a library, whose kernels round differently.
refuse_another_library() {
  local out=$work/library said='different versions of the GPUs and their libraries of @mlp'
  LD_LIBRARY_PATH=$fakes launch "$out" mpirun --oversubscribe -np 2 \
    bash -c "[ \$OMPI_COMM_WORLD_RANK != 1 ] || export LOCKSTEP_FAKE_CUBLASLT=130200; exec $program over=nccl"
  if ! grep -qE "$said.*on rank 0: cuBLASLt 13\.1\.0\|.*on rank 1: cuBLASLt 13\.2\.0\|" "$out"; then
    echo "FAILED: another library:"
    cat "$out"
    return 1
  fi
  echo "ranks with another cuBLASLt are refused"
}

# others_say SECONDS TEXT ARGUMENTS…: expects all ranks but rank 1, of three ranks or of four along two axes, to print a
# message that matches TEXT within SECONDS.
others_say() {
  local limit=$1 text=$2 out named slowest ranks=3 how
  shift 2
  [[ "$*" != *model=* ]] || ranks=4
  how="mpirun --oversubscribe -np $ranks"
  out=$(mktemp -p "$work")
  # Without this, mpirun kills the other ranks when one dies, before they can print. With it, its exit status is 0.
  [[ "$*" != *kill=* && "$*" != *stop=* ]] || how+=" --enable-recovery"
  [[ "$*" != *threads=* ]] || how=
  LD_LIBRARY_PATH=$fakes launch "$out" $how "$program" "$@"
  local status=$?
  named=$(grep -cE "^rank [023] after .* s: .*$text" "$out")
  slowest=$(grep -oE "^rank [023] after [0-9]+" "$out" | grep -oE "[0-9]+$" | sort -n | tail -1)
  if [[ $status -eq 0 && $how != *recovery* ]] || [ $status -eq 124 ] || [ "$named" -ne $((ranks - 1)) ] ||
    [ "$slowest" -ge "$limit" ]; then
    echo "FAILED: $*: exit status $status, $named of $((ranks - 1)) others said so, the slowest after ${slowest:-no} s"
    cat "$out"
    return 1
  fi
  echo "$*: $(grep -m1 -E "^rank [023] after" "$out")"
}

# Each case waits most of its time, so several run at once.
failures=0
running=0
spawn() {
  if [ "$running" -ge 4 ]; then
    wait -n || failures=$((failures + 1))
    running=$((running - 1))
  fi
  "$@" &
  running=$((running + 1))
}

spawn learn 2
spawn learn 3
spawn learn_along_two_axes
spawn refuse_another_library
died='rank 1 on host [^ ]+ \(process [0-9]+\) died while rank [023] on host'
stopped='for rank 1 on host [^ ]+: stopped by a signal$'
label='rank 1 on host [^ ]+ gave up: .*softmax_cross_entropy \(C5\): a label [(]the loss has no ignore_index[)] is outside \[0, 5\), at loss'
differs='ranks have different versions of the program @mlp.*on rank 0: .*= 0\.3[,)].*on rank 1: .*= 0\.2[,)]'
# Through NCCL; from the second run on as a CUDA graph.
spawn others_say $soon "$died" over=nccl kill=step
spawn others_say $patient "DEADLINE_EXCEEDED: .*$stopped" over=nccl stop=step run=3
spawn others_say $patient "DEADLINE_EXCEEDED: .*$stopped" over=nccl stop=join
spawn others_say $soon "$died" over=nccl kill=step run=3
spawn others_say $soon "$died" over=nccl kill=between run=3
spawn others_say $soon "$died" over=nccl kill=join
spawn others_say $soon "$label" over=nccl label=step run=3
spawn others_say $soon "rank 1 on host [^ ]+ has left" over=nccl leave=between run=3
# Along two axes, whose communicators share a GPU: both are told about the one kernel that waits.
spawn others_say $soon "$died" over=nccl model=2 kill=step
spawn others_say $soon "$died" over=nccl model=2 kill=step run=3
spawn others_say $soon "$label" over=nccl model=2 label=step run=3
# Through the host.
spawn others_say $patient "DEADLINE_EXCEEDED: .*$stopped" gpus=1 over=host stop=step run=3
spawn others_say $soon "$died" gpus=1 over=host kill=step
spawn others_say $soon "$label" gpus=1 over=host label=step
spawn others_say $soon "$label" threads=3 gpus=1 over=host label=step run=3
if [ -n "${LOCKSTEP_TEST_EVERYTHING:-}" ]; then
  spawn others_say $patient "DEADLINE_EXCEEDED: .*$stopped" over=nccl stop=step
  spawn others_say $patient "DEADLINE_EXCEEDED: .*$stopped" over=nccl stop=load
  spawn others_say $soon "$died" over=nccl kill=open
  spawn others_say $soon "$died" over=nccl kill=load
  spawn others_say $soon "$label" over=nccl label=step
  spawn others_say $soon "$differs" over=nccl differ=load
  spawn others_say $patient "DEADLINE_EXCEEDED: .*$stopped" gpus=1 over=host stop=load
  spawn others_say $soon "$died" gpus=1 over=host kill=load
  spawn others_say $soon "$died" gpus=1 over=host kill=between run=3
  spawn others_say $soon "$differs" gpus=1 over=host differ=load
  spawn others_say $soon "rank 1 on host [^ ]+ has left" gpus=1 over=host leave=between run=3
fi
while [ "$running" -gt 0 ]; do
  wait -n || failures=$((failures + 1))
  running=$((running - 1))
done
exit $((failures > 0))
