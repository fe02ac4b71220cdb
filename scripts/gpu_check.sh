#!/usr/bin/env bash
# Builds the CUDA kernels by themselves, with the CUDA toolkit and nothing else, and on a machine with a GPU tests them, runs the
# programs of a bundle if there is one, measures the kernels and what torch reaches, profiles them, and tests them again under
# compute-sanitizer. Needs no network.
#
#   scripts/gpu_check.sh [--build DIR] [--json FILE] [--arch LIST] [--seconds N] [--python FILE] [--bundle PATH] [--quick] [--built]
#
#   --build DIR   where to build (default: build/gpu-check)
#   --json FILE   the report (default: DIR/gpu_check.json)
#   --arch LIST   architectures, as in "90a" or "80;90a" (default: the GPU's own; without a GPU 90a)
#   --seconds N   time for all steps after the build (default 540); steps that would begin later are skipped
#   --python FILE interpreter with torch (default: .venv-peers/bin/python if there is one, or python3)
#   --bundle PATH what scripts/gpu_bundle.sh made, unpacked or not (default: gpu-bundle or gpu-bundle.tar.xz beside --build)
#   --quick       facts and tests alone
#   --built       compiles nothing: DIR has the programs, as this script left them on another machine
#
# In this order, with a share of the time each, to which what earlier ones leave is added: facts of the machine (15 s, before the
# build), tests (75 s), the bundle (220 s), benchmarks (40 s), peers in torch (25 s), profiles by ncu (60 s), and compute-sanitizer
# (the rest). Every step is a process of its own with a time limit: kernels of a family, a case of the bundle, a benchmark, a
# kernel's profile. What it printed is in DIR/steps/, and the report is written anew after each, so an error in one loses nothing of
# the others.
# Exit code: 0 all passed; 1 something failed; 77 built, but there is no GPU here.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
build="$root/build/gpu-check" json="" arch="" bundle="" quick="" built="" seconds=540 python="$root/.venv-peers/bin/python"
[ -x "$python" ] || python=python3
usage() { sed -n '2,23p' "${BASH_SOURCE[0]}" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case "$1" in
    --build | --json | --arch | --seconds | --python | --bundle) [ $# -ge 2 ] || usage ;;&
    --build) build="$2"; shift 2 ;;
    --json) json="$2"; shift 2 ;;
    --arch) arch="$2"; shift 2 ;;
    --seconds) seconds="$2"; shift 2 ;;
    --python) python="$2"; shift 2 ;;
    --bundle) bundle="$2"; shift 2 ;;
    --quick) quick=1; shift ;;
    --built) built=1; shift ;;
    *) usage ;;
  esac
done
[[ $seconds =~ ^[0-9]+$ ]] || usage
json="${json:-$build/gpu_check.json}"
if [ -z "$bundle" ]; then
  for found in "$build"/../gpu-bundle.tar.xz "$build"/../gpu-bundle; do  # the newer one
    [ ! -e "$found" ] || { [ -n "$bundle" ] && [ "$bundle" -nt "$found" ]; } || bundle="$found"
  done
elif [ ! -e "$bundle" ]; then
  echo "gpu_check: --bundle $bundle: no such file or directory; scripts/gpu_bundle.sh makes one" >&2
  exit 1
fi

find_tool() { command -v "$1" || { [ -x "/usr/local/cuda/bin/$1" ] && echo "/usr/local/cuda/bin/$1"; } || true; }
nvcc="${CUDACXX:-$(find_tool nvcc)}"
if [ -z "$nvcc" ] && [ -z "$built" ]; then
  echo "gpu_check: no nvcc (looked at CUDACXX, the PATH and /usr/local/cuda/bin); install the CUDA toolkit" >&2
  exit 1
fi

gpu="" capability=""
smi="$(find_tool nvidia-smi)"
if [ -n "$smi" ]; then
  gpu="$("$smi" --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)"
  capability="$("$smi" --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d '. ' || true)"
fi
if [ -z "$arch" ]; then
  case "$capability" in
    80 | 86 | 89) arch=80 ;;  # one code for all of 8.x
    90 | 100) arch="${capability}a" ;;
    12*) arch=120 ;;
    "") arch=90a ;;
    *) echo "gpu_check: compute capability $capability has no kernels; they are for 8.x, 9.0, 10.0 and 12.x" >&2; exit 1 ;;
  esac
fi

steps="$build/steps"
rm -rf "$steps"
mkdir -p "$steps"
start=$SECONDS due=15 failed=0 results="" parts=""
# Seconds until the share that is used, and all time, are over.
left() {
  local elapsed=$((SECONDS - start)) end=$due
  [ "$end" -lt "$seconds" ] && [ -z "$quick" ] || end=$seconds
  echo $((end - elapsed))
}
state() { "$smi" --query-gpu=clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,driver_version --format=csv,noheader | head -1; }
toolkit="$([ -z "$nvcc" ] || "$nvcc" --version | tail -1)"

write_report() {
  printf '{\n  "device": "%s",\n  "clocks_sm_mem_max_power_driver": "%s",\n  "architectures": "%s",\n  "toolkit": "%s",\n  "steps": [%s\n  ]%s\n}\n' \
    "$gpu" "$(state)" "$arch" "$toolkit" "$results" "$parts" >"$json.partial"
  mv "$json.partial" "$json"
}

# step NAME SECONDS COMMAND...: at most so long, and not beyond its share. Exit code 77 of COMMAND: skipped, for the reason in its
# last line.
step() {
  local name="$1" limit="$2" code=0 began=$SECONDS
  local log="$steps/${name// /-}.log"
  shift 2
  outcome=passed
  if [ "$(left)" -lt 5 ]; then
    outcome=skipped
  else
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 || code=$?
    case $code in
      0) ;;
      77) outcome="$(tail -1 "$log" | tr -cd '[:alnum:] .,:()/_+-')" ;;
      124 | 137) outcome="out of time after $limit s" failed=1 ;;
      *) outcome="failed with $code" failed=1 ;;
    esac
  fi
  echo "== $name: $outcome"
  case "$outcome" in passed | skipped*) ;; *) tail -5 "$log" ;; esac
  results="$results${results:+,}
    {\"step\": \"$name\", \"outcome\": \"$outcome\", \"seconds\": $((SECONDS - began))}"
  write_report
}
# measure NAME COMMAND...: a step that writes JSON, which becomes a part of the report.
measure() {
  local name="$1" file="$steps/$1.json"
  shift
  step "$name" 120 "$@" --json "$file"
  if [ -s "$file" ]; then
    parts="$parts,
  \"$name\": $(cat "$file")"
    write_report
  fi
}

if [ -n "$gpu" ]; then
  echo "== $gpu"
  step facts 15 "$root/scripts/gpu_facts.sh" "$python"
fi

if [ -z "$built" ]; then
  generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  # cuBLAS and cuSOLVER beside the torch package, where the toolkit comes without them.
  peers="$("$python" -c 'import importlib.util as u; print(list(u.find_spec("nvidia").submodule_search_locations)[0] + "/cu13")' 2>/dev/null || true)"
  echo "== building for $arch in $build"
  mkdir -p "$build"
  cmake -S "$root/runtime/kernels/cuda" -B "$build" "${generator[@]}" -DCMAKE_CUDA_COMPILER="$nvcc" \
    -DKVC_CUDA_ARCHITECTURES="$arch" -DKVC_CUDA_PEERS="$peers" -DCMAKE_BUILD_TYPE=Release >"$build/configure.log" 2>&1 ||
    { cat "$build/configure.log" >&2; exit 1; }
  cmake --build "$build" --parallel "$(nproc)" >"$build/build.log" 2>&1 ||
    { grep -v 'ptxas info' "$build/build.log" | tail -40 >&2; exit 1; }
fi

if [ -n "$built" ] && [ -z "$(find "$build" -maxdepth 2 -type f -perm -u+x -name 'cuda_*_test')" ]; then
  echo "gpu_check: --built: $build has no test programs; leave --built out, or pass --build DIR" >&2
  exit 1
fi
programs() { find "$build" -maxdepth 2 -type f -perm -u+x -name "cuda_*$1" | sort; }
if [ -z "$gpu" ]; then
  echo "gpu_check: built $(programs _test | wc -l) test programs and $(programs _bench | wc -l) benchmarks in $build"
  echo "gpu_check: no GPU on this machine: nothing was tested on one and nothing was measured"
  exit 77
fi
start=$SECONDS due=75  # anew: the build took any time
mapfile -t tests < <(programs _test)
mapfile -t benchmarks < <(programs _bench)
# find_families PROGRAM: sets families. A program that does not start, or has none, is a step that failed.
find_families() {
  families="$("$1" --families)" || families=""
  [ -n "$families" ] || step "$(basename "$1") --families" 30 sh -c '"$1" --families && echo "no families" && exit 1' sh "$1"
}
for program in "${tests[@]}"; do
  find_families "$program"
  for family in $families; do
    step "$(basename "$program") $family" 60 "$program" "${family}_"
  done
done
if [ -z "$quick" ]; then
  due=$((due + 220))
  outcome=passed
  if [ -z "$bundle" ]; then
    step bundle 5 sh -c 'echo "skipped: no bundle (scripts/gpu_bundle.sh makes one)"; exit 77'
  elif [ -f "$bundle" ]; then
    rm -rf "$build/gpu-bundle"
    step "bundle unpacked" 30 "$python" -m tarfile -e "$bundle" "$build"
    bundle="$build/gpu-bundle"
  fi
  # Its first start, which loads all libraries from disk, is a step too.
  [ -z "$bundle" ] || [ "$outcome" != passed ] || step bundle 60 "$bundle/run.sh" --python "$python" --exec kvrun --version
  if [ -n "$bundle" ] && [ "$outcome" = passed ]; then
    cases="$("$bundle/run.sh" --python "$python" --list)" || cases=""
    [ -n "$cases" ] || step "bundle --list" 30 sh -c '"$1" --python "$2" --list && echo "no cases" && exit 1' sh "$bundle/run.sh" "$python"
    for case in $cases; do
      measure "bundle_$case" "$bundle/run.sh" --python "$python" --data "$root/tests/data" --seconds 60 "$case"
    done
  fi

  due=$((due + 40))
  for program in "${benchmarks[@]}"; do
    measure "$(basename "$program")" "$program"
  done
  due=$((due + 25))
  measure gpu_peers "$python" "$root/bench/gpu_peers.py"

  due=$((due + 60))
  ncu="$(find_tool ncu)"
  [ -n "$ncu" ] || echo "== no ncu: skipped"
  # profile PROGRAM KERNEL PATTERN: the first launch of the kernel in a benchmark. One that is not permitted is the last.
  profile() {
    local program
    program="$(programs _bench | grep "/$1\$" || true)"
    if [ -n "$ncu" ] && [ -n "$program" ]; then
      step "profile of $2" 30 "$root/scripts/gpu_profile.sh" "$ncu" "$3" "$program"
      [ "$outcome" = passed ] || ! grep -qs '^skipped: the driver' "$steps/profile-of-$2.log" || ncu=""
    fi
  }
  profile cuda_kernels_bench dense_attention 'DenseAttentionKernel<'
  profile cuda_step_bench few_rows_product 'FewRowsProductKernel<'
  profile cuda_kernels_bench coded_attention 'CodedAttentionKernel<'
  profile cuda_kernels_bench rebuild_scores 'RebuildScoresKernel<'
  profile cuda_kernels_bench combine_partials 'CombinePartialsKernel'
  profile cuda_cache_bench budget_step 'BudgetStepKernel<'
  profile cuda_kernels_bench sum_ranks 'SumRanksKernel<'
  profile cuda_step_bench sample_tokens 'SampleTokensKernel'
  profile cuda_kernels_bench dense_attention_of_codes 'DenseAttentionKernel<.*(true|\(bool\)1)>'
  profile cuda_kernels_bench fused_attention 'DenseAttentionKernel<.*2, *(false|\(bool\)0)>'
  profile cuda_kernels_bench project_values 'ProjectValuesKernel<'

  due=$seconds
  sanitizer="$(find_tool compute-sanitizer)"
  [ -n "$sanitizer" ] || echo "== no compute-sanitizer: skipped"
  for tool in ${sanitizer:+memcheck racecheck}; do
    for program in "${tests[@]}"; do
      find_families "$program"
      for family in $families; do
        step "$(basename "$program") $family under $tool" 90 \
          "$sanitizer" --tool "$tool" --error-exitcode 1 --print-limit 5 "$program" "${family}_"
      done
    done
  done
fi
echo "== wrote $json"
exit $failed
