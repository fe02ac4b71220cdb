#!/usr/bin/env bash
# Builds everything and runs all tests, those against other libraries included.
# Needs nothing but git and python3 on Debian 12 or Ubuntu 24.04.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh --peers
cmake --preset cpu ${KVC_TORCH_DIR:+"-DKVC_TORCH_DIR=$KVC_TORCH_DIR"}
cmake --build --preset cpu
export KVC_REQUIRE_PEERS=1
export OMP_WAIT_POLICY=passive  # threads that wait in loops slow a machine down that has other work
exec ctest --preset cpu "$@"
