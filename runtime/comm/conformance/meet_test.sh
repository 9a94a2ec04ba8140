#!/bin/bash
# Runs the conformance suite in processes that meet without MPI, by a file and with a secret, and kills one of them.
#   meet_test.sh mpi_main
set -u
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LOCKSTEP_SECRET=$RANDOM$RANDOM
failures=0

fail() {
  echo "FAILED: $1"
  cat "$folder/$2".*
  failures=$((failures + 1))
}

# name, ranks, further arguments: starts the ranks, whose output is in the folder, and awaits them.
ranks() {
  local name=$1 size=$2 rank
  shift 2
  for ((rank = 0; rank < size; ++rank)); do
    RANK=$rank WORLD_SIZE=$size LOCKSTEP_RENDEZVOUS_FILE=$folder/$name timeout 120 "$program" "$size" "$@" \
      >"$folder/$name.$rank" 2>&1 &
  done
  wait
}

# ranks, further arguments: the suite passes with this number of ranks.
suite() {
  local size=$1 name="suite $*" failures=0 ran
  shift
  ranks "$name" "$size" "$@"
  ran=$(cat "$folder/$name".* | grep -cE "^rank [0-9]+ of $size on .*: [1-9][0-9]* cases passed$")
  [ "$ran" -eq "$size" ] || fail "$name: $ran ranks passed" "$name"
  [ ! -e "$folder/$name" ] || fail "$name: the file is left" "$name"
  echo "$name: $(cat "$folder/$name".* | grep -m1 -o '[0-9]* cases passed') on each"
  [ "$failures" -eq 0 ]
}

await_all() {
  local job
  for job in $(jobs -p); do wait "$job" || failures=$((failures + 1)); done
}

suite 2 &
suite 4 max_group=2 &
await_all
if [ -n "${LOCKSTEP_TEST_EVERYTHING:-}" ]; then
  suite 3 max_group=1 &
  suite 4 max_group=2 in_rank_order &
  await_all
  suite 7
fi

for groups in 0 1; do
  ranks "dead $groups" 3 die=1 max_group=$groups
  named=$(cat "$folder/dead $groups".* | grep -cE '^rank [02] learns: .*rank 1 on host .*(died|: its connection is (lost|closed))')
  [ "$named" -eq 2 ] || fail "rank 1 died (max_group=$groups): $named of 2 survivors named it" "dead $groups"
  echo "a dead rank is named by $named survivors (max_group=$groups)"
done

exit $((failures > 0))
