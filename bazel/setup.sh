#!/usr/bin/env bash
# Installs missing dependencies of Lockstep: Debian packages, and .venv with pinned Python packages. `make setup` runs
# it before everything else, so it is quick if nothing is missing. Arguments are additional Debian packages.
# PYTHON=/path/to/python3.11 chooses the interpreter. The version is that of a line in _base/isolated.py.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.lockstep-setup
version=$(sed -n 's/^PYTHON = (\([0-9]*\), \([0-9]*\)).*/\1.\2/p' python_bindings/lockstep/_base/isolated.py)
inputs=(bazel/setup.sh bazel/debian-packages.txt requirements.txt requirements-test.txt requirements-source.txt)

say() { echo "setup: $*"; }
fail() { echo "setup: error: $*" >&2; exit 1; }

# Prints the named Debian packages that are not installed.
missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p' || true)
  comm -23 <(printf '%s\n' "$@" | sort -u) <(sort -u <<<"$installed")
}

# Prints a line that identifies the dependencies of this checkout. It equals the stamp if nothing is to be done.
wanted() { echo "$(cat "${inputs[@]}" | sha256sum | cut -d' ' -f1) $(realpath .venv)"; }

# Succeeds if an interpreter runs and has the version.
is_of_version() { [ "$("$1" -c 'import sys; print("{}.{}".format(*sys.version_info))' 2>/dev/null)" = "$version" ]; }

# Prints the first Python of that version that runs, or nothing if there is none.
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" "python$version" python3 "/usr/bin/python$version"; do
    [ -n "$candidate" ] || continue
    if is_of_version "$candidate"; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
    [ "$candidate" != "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is not a Python $version"
  done
}

# Succeeds if an interpreter can make virtual environments and has the headers for compiling extensions.
python_is_complete() {
  "$1" -c '
import ensurepip, os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null
}

install_packages() {
  local missing as_root=()
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  say "installing Debian packages (about a minute): $(tr '\n' ' ' <<<"$missing")"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "not root, and there is no sudo. As root, run: apt-get install" $(tr '\n' ' ' <<<"$missing")
    as_root=(sudo)
  fi
  mkdir -p build
  # shellcheck disable=SC2086
  { "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; } \
    > build/setup.log 2>&1 || { tail -n 20 build/setup.log >&2; fail "apt-get failed; all of its output is in build/setup.log"; }
}

main() {
  local packages python
  mapfile -t packages < <(grep -v '^#' bazel/debian-packages.txt)
  packages+=("$@")
  if [ -x .venv/bin/python ] && [ -d ".venv/lib/python$version" ] && [ "$(cat $stamp 2>/dev/null)" = "$(wanted)" ] &&
    [ -z "$(missing_packages "${packages[@]}")" ]; then
    point_to_package  # the checkout may have moved
    return 0
  fi

  command -v apt-get >/dev/null || fail "this needs Debian 12 (apt-get is missing)"
  python=$(find_python)
  if [ -z "$python" ] || { [[ $python == /usr/bin/* ]] && ! python_is_complete "$python"; }; then
    packages+=("python$version" "python$version-venv" "python$version-dev")
  fi
  install_packages "${packages[@]}"
  python=$(find_python)
  [ -n "$python" ] || fail "there is no Python $version; set PYTHON to one"
  python_is_complete "$python" || fail "$python lacks Python.h or ensurepip; set PYTHON to a complete Python $version"

  if ! is_of_version .venv/bin/python; then
    say "making .venv with $python"
    [ -L .venv ] || rm -rf .venv
    "$python" -m venv .venv
  fi
  say "installing Python packages into .venv: $(cat requirements.txt requirements-test.txt | sed -n 's/^\([a-z][^ ]*\).*/\1/p' | tr '\n' ' ')"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-test.txt
  unpack_sources
  point_to_package
  wanted > $stamp
  say "done"
}

# Makes `import lockstep` find the sources, and .venv/bin/lockstep the program. Does nothing if .venv is a link, that
# is, if it belongs to another checkout.
point_to_package() {
  [ ! -L .venv ] || return 0
  echo "$PWD/python_bindings" > ".venv/lib/python$version/site-packages/lockstep.pth"
  ln -sfn ../../tools/lockstep .venv/bin/lockstep
}

# Fetches the archives of requirements-source.txt, and unpacks protobuf's sources to .venv/src/protobuf and MPICH to
# .venv/src/mpich. MPICH is not installed into .venv, where its mpirun would hide Open MPI's.
unpack_sources() {
  local scratch
  [ "$(cat .venv/src/version 2>/dev/null)" != "$(cat requirements-source.txt)" ] || return 0
  say "unpacking protobuf's sources and MPICH into .venv/src"
  scratch=$(mktemp -d)
  # pip builds the metadata of a source archive, which for this one needs an older setuptools.
  echo 'setuptools<70' > "$scratch/constraints.txt"
  PIP_CONSTRAINT="$scratch/constraints.txt" .venv/bin/python -m pip download --quiet --disable-pip-version-check \
    --no-deps --no-binary grpcio-tools --dest "$scratch" -r requirements-source.txt
  rm -rf .venv/src
  mkdir -p .venv/src/protobuf
  tar -xzf "$scratch"/grpcio-tools-*.tar.gz -C .venv/src/protobuf --strip-components=4 --wildcards \
    '*/third_party/protobuf/src/google'
  .venv/bin/python -m zipfile -e "$scratch"/mpich-*.whl "$scratch"
  mv "$scratch"/mpich-*.data/data .venv/src/mpich
  chmod +x .venv/src/mpich/bin/*
  cp requirements-source.txt .venv/src/version
  rm -rf "$scratch"
}

main "$@"
