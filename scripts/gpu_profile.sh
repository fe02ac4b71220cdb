#!/usr/bin/env bash
# Profiles one launch of a kernel in a program by ncu: how near it comes to what bounds it, and what its warps wait for.
#
#   scripts/gpu_profile.sh NCU KERNEL PROGRAM [ARGUMENT...]
#
# KERNEL: a regular expression for its whole name. Clocks stay as they are. Exit code: 77 where counters are not permitted.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,6p' "${BASH_SOURCE[0]}" >&2; exit 2; }
ncu="$1" kernel="$2"
shift 2
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
code=0
"$ncu" --clock-control none --kernel-name-base demangled --kernel-name "regex:$kernel" --launch-count 1 --kill yes \
  --section SpeedOfLight --section MemoryWorkloadAnalysis --section ComputeWorkloadAnalysis --section LaunchStats \
  --section Occupancy --section SchedulerStats --section WarpStateStats "$@" >"$log" 2>&1 || code=$?
cat "$log"
if grep -q ERR_NVGPUCTRPERM "$log"; then
  echo "skipped: the driver does not permit this user to read the counters of the GPU"
  exit 77
fi
# The program is killed once the launch is profiled, so its exit code says nothing.
if ! grep -q "GPU Speed Of Light" "$log"; then
  echo "gpu_profile: no launch of $kernel was profiled (ncu ended with $code)" >&2
  exit 1
fi
