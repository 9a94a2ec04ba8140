#!/bin/bash
# Checks and measures the cuda backend on a machine with a GPU, in five minutes. docs/gpu.md says how, and what is
# required.
#   cuda_check.sh [--out FOLDER] [--parts doctor,losses,…] [--backend cpu] …     --help lists the options
# Runs from the unpacked bundle of `make cuda-bundle`, anywhere; in a checkout, from the bundle's folder in build/.
set -u
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
[ -x "$root/python/bin/python3" ] || root=$root/build/lockstep-cuda
if [ ! -x "$root/python/bin/python3" ]; then
  echo "cuda_check.sh: there is no $root. Run \`make cuda-bundle\`." >&2
  exit 1
fi
export LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec env PYTHONHOME="$root/python" "$root/python/bin/python3" -s "$root/test/cuda_check/cuda_check.py" "$@"
