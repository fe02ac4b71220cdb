#!/usr/bin/env bash
# Builds the CUDA kernels by themselves, with the CUDA toolkit and nothing else, and on a machine with a GPU tests
# them (under compute-sanitizer too, where there is one) and measures them. Needs no network.
#
#   scripts/gpu_check.sh [--build DIR] [--json FILE] [--arch LIST] [--quick]
#
#   --build DIR   where to build (default: build/gpu-check)
#   --json FILE   the report (default: DIR/gpu_check.json)
#   --arch LIST   architectures, as in "90a" or "80;90a" (default: the GPU's own; without a GPU 90a)
#   --quick       tests alone: no sanitizer, no benchmarks
#
# Exit code: 0 all passed; 1 something failed; 77 built, but there is no GPU here.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
build="$root/build/gpu-check" json="" arch="" quick=""
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build="$2"; shift 2 ;;
    --json) json="$2"; shift 2 ;;
    --arch) arch="$2"; shift 2 ;;
    --quick) quick=1; shift ;;
    *) sed -n '2,13p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
json="${json:-$build/gpu_check.json}"

find_tool() { command -v "$1" || { [ -x "/usr/local/cuda/bin/$1" ] && echo "/usr/local/cuda/bin/$1"; } || true; }
nvcc="${CUDACXX:-$(find_tool nvcc)}"
if [ -z "$nvcc" ]; then
  echo "gpu_check: no nvcc (looked at CUDACXX, the PATH and /usr/local/cuda/bin); install the CUDA toolkit" >&2
  exit 1
fi

gpu="" capability=""
if nvidia_smi="$(find_tool nvidia-smi)" && [ -n "$nvidia_smi" ]; then
  gpu="$("$nvidia_smi" --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)"
  capability="$("$nvidia_smi" --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d '. ' || true)"
fi
if [ -z "$arch" ]; then
  case "$capability" in
    80 | 120) arch="$capability" ;;
    90 | 100) arch="${capability}a" ;;
    "") arch=90a ;;
    *) echo "gpu_check: compute capability $capability has no kernels; they are for 8.0, 9.0, 10.0 and 12.0" >&2; exit 1 ;;
  esac
fi

generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
echo "== building for $arch in $build"
mkdir -p "$build"
cmake -S "$root/runtime/kernels/cuda" -B "$build" "${generator[@]}" -DCMAKE_CUDA_COMPILER="$nvcc" \
  -DKVC_CUDA_ARCHITECTURES="$arch" -DCMAKE_BUILD_TYPE=Release >"$build/configure.log" 2>&1 ||
  { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build" --parallel "$(nproc)" >"$build/build.log" 2>&1 ||
  { grep -v 'ptxas info' "$build/build.log" | tail -40 >&2; exit 1; }

programs() { find "$build" -maxdepth 2 -type f -perm -u+x -name "cuda_*$1" | sort; }
if [ -z "$gpu" ]; then
  echo "gpu_check: built $(programs _test | wc -l) test programs and $(programs _bench | wc -l) benchmarks in $build"
  echo "gpu_check: no GPU on this machine: nothing was tested on one and nothing was measured"
  exit 77
fi
echo "== $gpu"

failed=0 results=""
note() { results="$results${results:+,}
    {\"step\": \"$1\", \"passed\": $2}"; }
run() {
  local name="$1"
  shift
  echo "== $name"
  local code=0
  "$@" || code=$?
  if [ $code -eq 0 ]; then note "$name" true; else note "$name" false; failed=1; fi
}

for program in $(programs _test); do
  run "$(basename "$program")" "$program"
done
sanitizer="$(find_tool compute-sanitizer)"
if [ -z "$quick" ] && [ -n "$sanitizer" ]; then
  for program in $(programs _test); do
    for tool in memcheck racecheck; do
      run "$(basename "$program") under $tool" timeout 150 "$sanitizer" --tool "$tool" --error-exitcode 1 \
        --print-limit 5 "$program"
    done
  done
elif [ -z "$quick" ]; then
  echo "== no compute-sanitizer: skipped"
fi

parts=""
if [ -z "$quick" ]; then
  for program in $(programs _bench); do
    name="$(basename "$program")"
    run "$name" "$program" --json "$build/$name.json"
    [ -s "$build/$name.json" ] && parts="$parts,
  \"$name\": $(cat "$build/$name.json")"
  done
fi
clocks="$("$nvidia_smi" --query-gpu=clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,driver_version --format=csv,noheader | head -1)"
printf '{\n  "device": "%s",\n  "clocks_sm_mem_max_power_driver": "%s",\n  "architectures": "%s",\n  "toolkit": "%s",\n  "steps": [%s\n  ]%s\n}\n' \
  "$gpu" "$clocks" "$arch" "$("$nvcc" --version | tail -1)" "$results" "$parts" >"$json"
echo "== wrote $json"
exit $failed
