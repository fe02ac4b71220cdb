#!/usr/bin/env bash
# Compares other engines with kvrun: the bundled reference checkpoint, its folded export, and its coded conversion.
# Each engine is installed into an environment of its own under build/engines/ (versions.env pins the versions; about 1 GB
# besides what scripts/setup.sh --peers --vllm installs, and llama.cpp is compiled, which takes minutes). One that cannot be
# installed is reported and fails nothing. Prints a table and writes build/engines/check/engines.json; the exit code is 1
# where an engine fails or disagrees. Can be run again at any time.
#   scripts/check_engines.sh [CHECKPOINT] [--engines NAME ...]    other options: --help
# KVCONVERT_BIN=<directory of built programs> and KVCONVERT_OPS=<libkvconvert_ops.so> use these and build nothing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

case " $* " in
  *" --help "* | *" -h "*) ;;
  *)
    "$root/scripts/setup.sh" --peers
    "$root/scripts/setup.sh" --vllm || echo "check_engines: no vLLM here; going on without it" >&2
    if [[ -z ${KVCONVERT_BIN:-} ]]; then
      (cd "$root" && cmake --preset cpu ${KVC_TORCH_DIR:+"-DKVC_TORCH_DIR=$KVC_TORCH_DIR"} >/dev/null)
      (cd "$root" && cmake --build --preset cpu --target kvconvert kvrun kvconvert_ops)
      export KVCONVERT_BIN=$root/build/cpu/bin KVCONVERT_OPS=$root/build/cpu/lib/libkvconvert_ops.so
    fi
    ;;
esac
exec "$root/scripts/with_peers.sh" "$root/bench/engines/check_engines.py" "$@"
