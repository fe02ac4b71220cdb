#!/usr/bin/env bash
# with_vllm.sh SCRIPT ARGS...: runs a Python script with vLLM and with the package of this tree, from .venv-vllm, which
# scripts/setup.sh --vllm makes; `with_vllm.sh -m vllm.entrypoints.cli.main serve DIR` serves. KVC_VLLM_VENV names another
# environment, such as .venv-vllm-oldest. The library of operators is KVCONVERT_OPS, or build/cpu/lib's. Without vLLM it
# says so and exits 77 (ctest: skipped), or 1 where KVC_REQUIRE_PEERS=1.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${KVC_VLLM_VENV:-.venv-vllm}
[[ $venv == /* ]] || venv=$root/$venv
python=$venv/bin/python

if [[ ! -x $python ]]; then
  echo "no $python; run scripts/setup.sh --vllm, or --oldest-vllm" >&2
  [[ ${KVC_REQUIRE_PEERS:-0} == 1 ]] && exit 1
  exit 77
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# vLLM finds plugins among the entry points of installed packages.
mkdir "$scratch/kvconvert-0.dist-info"
printf 'Metadata-Version: 2.1\nName: kvconvert\nVersion: 0\n' >"$scratch/kvconvert-0.dist-info/METADATA"
printf '[vllm.general_plugins]\nkvconvert = kvconvert.vllm:register\n' >"$scratch/kvconvert-0.dist-info/entry_points.txt"
export PYTHONPATH=$root/python:$scratch${PYTHONPATH:+:$PYTHONPATH}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export HF_HOME=${HF_HOME:-$scratch/hf} VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$scratch/vllm}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND:-nobind}
"$python" "$@"
