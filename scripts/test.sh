#!/usr/bin/env bash
# Builds everything and runs the tests, those against other libraries included.
# Needs nothing but git and python3 on Debian 12 or Ubuntu 24.04.
#   scripts/test.sh              all but the long tests; other arguments go to ctest
#   scripts/test.sh --long       these too: the memory of every cache at up to 16k tokens (about 5 minutes)
#   scripts/test.sh --engines    those of engines instead: families, parallel ranks, drafts, compilation and a server in vLLM, its
#                                second model runner, and the oldest vLLM that is served (some hours and 7 GB more)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=cpu oldest=()
if [[ ${1:-} == --engines ]]; then
  preset=engines oldest=(--oldest-vllm)
  shift
elif [[ ${1:-} == --long ]]; then
  preset=long
  shift
fi
scripts/setup.sh --peers
scripts/setup.sh --vllm "${oldest[@]}" &  # while the compiler works
engine=$!
trap 'kill "$engine" 2>/dev/null || true' EXIT
cmake --preset cpu ${KVC_TORCH_DIR:+"-DKVC_TORCH_DIR=$KVC_TORCH_DIR"}
cmake --build --preset cpu
wait "$engine"
trap - EXIT
export KVC_REQUIRE_PEERS=1
exec ctest --preset "$preset" "$@"
