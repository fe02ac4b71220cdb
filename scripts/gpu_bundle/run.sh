#!/usr/bin/env bash
# Runs the programs of this bundle (scripts/gpu_bundle.sh) on a machine that has torch: conversions and generations on the GPU,
# each compared with the CPU's results of the same run, and one report. Needs bash, and a python3 with the torch named in bundle.json.
#
#   run.sh [--data DIR] [--json FILE] [--work DIR] [--seconds N] [--device D] [--python FILE] [CASE...]
#   run.sh --list                        names of the cases
#   run.sh --exec PROGRAM ARGUMENT...    one program (kvrun, kvconvert, kvvalidate) with its libraries
#
#   --data DIR     checkpoints and texts: the project's tests/data (default: data/ of this bundle)
#   --json FILE    the report (default: report.json in the current directory), written anew after each case
#   --work DIR     where conversions and logits lie (default: a temporary directory, removed at the end)
#   --seconds N    time for all cases (default 600)
#   --device D     what is compared with the CPU (default cuda); cpu tries the comparisons without a GPU
#   --python FILE  interpreter with torch (default: python3)
#   CASE           one of --list (default: all)
#
# Exit code: 0 all passed; 1 something failed; 2 wrong options; 77 the CPU's parts passed, and parts on the GPU were skipped.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python=python3 program="" list="" arguments=()
fail() { echo "run.sh: error: $*" >&2; exit 1; }
usage() { sed -n '2,18s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case "$1" in
    --python | --exec | --data | --json | --work | --seconds | --device) [ $# -ge 2 ] || usage ;;&
    --python) python="$2"; shift 2 ;;
    --exec) program="$2"; shift 2; arguments=("$@"); break ;;
    --list) list=1; shift ;;
    --data | --json | --work | --seconds | --device) arguments+=("$1" "$2"); shift 2 ;;
    -*) usage ;;
    *) arguments+=("$1"); shift ;;
  esac
done

command -v "$python" >/dev/null || fail "no $python here; pass --python FILE, an interpreter with torch"
[ -z "$list" ] || exec "$python" "$here/main.py" --list
# Torch's version, its directory, and the directories of NVIDIA's libraries beside it; torch is not imported.
found="$("$python" - <<'PYTHON'
import importlib.util, pathlib, re
spec = importlib.util.find_spec("torch")
torch = pathlib.Path(spec.submodule_search_locations[0]) if spec is not None and spec.submodule_search_locations else None
if torch is not None and (torch / "version.py").exists():
    version = re.search(r"__version__ = '([^']*)'", (torch / "version.py").read_text())
    print(version.group(1) if version else "of unknown version")
    print(torch / "lib")
    for directory in sorted(torch.parent.glob("nvidia/*/lib")):
        print(directory)
PYTHON
)"
wanted="$(sed -n 's/.*"torch": "\(.*\)".*/\1/p' "$here/bundle.json")"
architectures="$(sed -n 's/.*"architectures": "\(.*\)".*/\1/p' "$here/bundle.json")"
[ -n "$found" ] || fail "$(command -v "$python") has no torch; torch $wanted expected: install it, or pass --python FILE"
{ read -r version && read -r torch && mapfile -t nvidia; } <<<"$found"
[ "${version%%+*}" = "$wanted" ] ||
  fail "$torch: torch $wanted expected, $version found; pass --python FILE, or make a bundle for that torch"
[ -z "$architectures" ] || [ -e "$torch/libtorch_cuda.so" ] ||
  fail "$torch: torch $version has no libtorch_cuda.so, which these programs need; install the torch that has CUDA"

path="$(IFS=:; echo "$here/lib:$torch:${nvidia[*]}")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if ! message="$(LD_LIBRARY_PATH="$path" "$here/bin/kvrun" --version 2>&1)"; then
  echo "$message" >&2
  fail "$here/bin/kvrun does not start. It needs glibc $(sed -n 's/.*"glibc": "\(.*\)".*/\1/p' "$here/bundle.json") and a libstdc++ with" \
    "$(sed -n 's/.*"libstdc++": "\(.*\)".*/\1/p' "$here/bundle.json"), or newer"
fi
if [ -n "$program" ]; then
  [ -x "$here/bin/$program" ] || fail "--exec $program: one of $(cd "$here/bin" && echo *) expected"
  LD_LIBRARY_PATH="$path" exec "$here/bin/$program" "${arguments[@]}"
fi
# Python itself keeps its own libraries.
KVC_LIBRARY_PATH="$path" KVC_TORCH_VERSION="$version" exec "$python" "$here/main.py" "${arguments[@]}"
