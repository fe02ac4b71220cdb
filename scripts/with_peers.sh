#!/usr/bin/env bash
# with_peers.sh SCRIPT ARGS...: runs a Python script with an interpreter that has transformers:
# .venv-peers, which scripts/setup.sh --peers makes, or .venv. Without one it says so and exits 77
# (ctest: skipped), or 1 where KVC_REQUIRE_PEERS=1.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

for python in "$root/.venv-peers/bin/python" "$root/.venv/bin/python"; do
  if [[ -x $python ]] && "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("transformers"))'; then
    export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
    if [[ -z ${HF_HOME:-} ]]; then  # custom-model code is copied there
      HF_HOME=$(mktemp -d)
      export HF_HOME
      trap 'rm -rf "$HF_HOME"' EXIT
    fi
    "$python" "$@"
    exit
  fi
done
echo "no interpreter with transformers; run scripts/setup.sh --peers" >&2
[[ ${KVC_REQUIRE_PEERS:-0} == 1 ]] && exit 1
exit 77
