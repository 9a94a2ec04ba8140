#!/bin/bash
# The conformance suite on two hosts: network namespaces of this machine with host names of their own, between which a
# link of 1 Gb/s carries what MPI sends. Needs root and the commands of iproute2; skips, saying so, where it may not
# make them.
#   two_hosts_test.sh conformance_mpi_main
set -u
# Open MPI unloads its plugins at the end, so the leak checker cannot tell what they kept from what we did.
export ASAN_OPTIONS=detect_leaks=0
PATH=$PATH:/usr/sbin:/sbin  # where ip and tc are
program=$(realpath "$1")
# Bazel knows only passed and failed: bazel/run_tests.py reads in the report that this was skipped.
skip() {
  echo "SKIPPED: $1"
  if [ -n "${XML_OUTPUT_FILE:-}" ]; then
    cat >"$XML_OUTPUT_FILE" <<REPORT
<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="two_hosts_test" tests="1" skipped="1">
<testcase name="two_hosts_test" status="run" result="skipped"><skipped message="$1"/></testcase>
</testsuite></testsuites>
REPORT
  fi
  exit 0
}
[ "$(id -u)" = 0 ] || skip "only root may create network namespaces"
for tool in ip tc unshare; do
  command -v $tool >/dev/null || skip "the command $tool is missing (packages iproute2, util-linux)"
done
a=lsa$$ b=lsb$$  # also the host names
ip netns add "$a" 2>/dev/null || skip "this machine refuses network namespaces"
work=$(mktemp -d)
trap 'ip netns del "$a"; ip netns del "$b" 2>/dev/null; rm -rf "$work"' EXIT
ip netns add "$b" && ip link add v0 netns "$a" type veth peer name v1 netns "$b" 2>/dev/null || skip "this machine refuses virtual links"
i=0
for host in "$a" "$b"; do
  ip -n "$host" addr add 10.77.0.$((i + 1))/24 dev v$i
  ip -n "$host" link set v$i up
  ip -n "$host" link set lo up
  ip netns exec "$host" tc qdisc add dev v$i root tbf rate 1gbit burst 256k latency 50ms || skip "tc cannot limit the link"
  i=$((i + 1))
done

# In place of ssh: drops the options, and runs the command in the namespace.
cat >"$work/agent.sh" <<'AGENT'
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
AGENT
chmod +x "$work/agent.sh"

# ranks on each host, arguments of the program
two_hosts() {
  local each=$1
  shift
  timeout 120 ip netns exec "$a" unshare --uts sh -c "hostname $a; export ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    mpirun -np $((2 * each)) --host $a:$each,$b:$each --oversubscribe --mca plm_rsh_agent $work/agent.sh \
      --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 $program $*" >"$work/out" 2>&1
}

failures=0
fail() {
  echo "FAILED: $1"
  cat "$work/out"
  failures=1
}
for each in 1 2; do
  two_hosts $each $((2 * each)) || fail "$each ranks on each host: exit status $?"
  for host in "$a" "$b"; do
    ran=$(grep -cE "^rank [0-9]+ of $((2 * each)) on $host: [1-9][0-9]* cases passed$" "$work/out")
    [ "$ran" -eq $each ] || fail "$ran of $each ranks passed on $host"
  done
  echo "$each ranks on each of two hosts: $(grep -m1 -o '[0-9]* cases passed' "$work/out") on each"
done

# A rank on the other host, not its group's first, is stopped in the midst of a collective: the others blame it alone.
two_hosts 2 4 stop=3 after=60
named=$(grep -cE "learns: DEADLINE_EXCEEDED: rank [0-9] on host [^ ]+ waited 2s in all_reduce max [^;]* for rank 3 on host $b: [a-z, ]+$" "$work/out")
# With the stopped rank's end mpirun ends the job, perhaps before all have spoken.
[ "$named" -ge 2 ] && [ "$named" -eq "$(grep -c learns "$work/out")" ] || fail "rank 3 stopped: $named of 3 blamed it alone"
echo "a stopped rank on the other host is named by $named others: $(grep -m1 learns "$work/out")"

# A rank on the other host dies: the job ends within 5 s (and a moment for starting it), and somebody says which rank.
begin=$(date +%s%N)
two_hosts 2 4 die=3 && fail "rank 3 died: exit status 0"
took=$((($(date +%s%N) - begin) / 1000000))
[ "$took" -lt 8000 ] || fail "rank 3 died: the job took $took ms to end"
grep -qE 'rank 3 |died while rank' "$work/out" || fail "rank 3 died: nobody says so"
echo "a dead rank on the other host ends the job after $took ms: $(grep -m1 -E 'rank 3 |died while rank' "$work/out")"
exit $failures
