#!/usr/bin/env bash
# Prints what there is to know of a machine with a GPU: the GPU with clocks and limits, driver, toolkit, torch, processor, memory.
#
#   scripts/gpu_facts.sh [PYTHON]
#
# PYTHON: whose torch is asked for (default: python3). What is missing is said to be, and is no error.
set -uo pipefail
python="${1:-python3}"

find_tool() { command -v "$1" || { [ -x "/usr/local/cuda/bin/$1" ] && echo "/usr/local/cuda/bin/$1"; } || true; }
# about WHAT COMMAND...: its output, for at most five seconds.
about() {
  local what="$1" tool
  shift
  echo "== $what"
  tool="$(find_tool "$1")"
  [ -n "$tool" ] || { echo "no $1"; return 0; }
  shift
  timeout --kill-after=1 5 "$tool" "$@" 2>&1 || echo "failed with $?"
}

about "GPU" nvidia-smi
about "clocks" nvidia-smi --format=csv \
  --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu
about "GPU, all" nvidia-smi -q
about "programs on it" nvidia-smi --query-compute-apps=pid,used_memory --format=csv
about "toolkit" nvcc --version
about "profiler" ncu --version
about "sanitizer" compute-sanitizer --version
about "torch" "$python" -c 'import torch
print("torch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())
if torch.cuda.is_available():
    print(torch.cuda.get_device_properties(0))'
about "compilers" g++ --version
about "CMake" cmake --version
about "processor" lscpu
about "memory" free -m
about "disk" df -h .
about "system" uname -a
exit 0
