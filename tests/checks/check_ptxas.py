#!/usr/bin/env python3
"""Compiles every CUDA kernel and reads what ptxas says of it: fails on register spills, on local memory, and on
static shared memory above the architecture's limit.

    check_ptxas.py [--arch 90a]... [--all] [--cache DIR] [--list] [FILE.cu...]

Needs nvcc (CUDACXX, the PATH or /usr/local/cuda/bin) and no GPU; exit code 77 without it. Sources that have not
changed since they last passed are not compiled again where --cache names a directory.
"""
import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = ROOT / "runtime" / "kernels" / "cuda"
# KiB of shared memory that a block may have (CUDA C++ Programming Guide, technical specifications).
SHARED_KIB = {"80": 163, "90a": 227, "100a": 227, "120": 99}
SKIPPED = 77

ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


class Kernel:
    def __init__(self, name):
        self.name = name
        self.registers = self.shared = self.frame = self.spilled = 0

    def problems(self, arch):
        found = []
        if self.spilled:
            found.append(f"spills {self.spilled} bytes of registers")
        if self.frame:
            found.append(f"has {self.frame} bytes of local memory")
        if self.shared > SHARED_KIB[arch] * 1024:
            found.append(f"has {self.shared} bytes of shared memory, sm_{arch} has {SHARED_KIB[arch] * 1024}")
        return found


def parse(output):
    """The kernels in ptxas -v's output."""
    kernels = []
    for line in output.splitlines():
        if match := ENTRY.search(line):
            kernels.append(Kernel(match[1]))
        if not kernels:
            continue
        kernel = kernels[-1]
        if match := FRAME.search(line):
            kernel.frame = max(kernel.frame, int(match[1]))
            kernel.spilled = max(kernel.spilled, int(match[2]) + int(match[3]))
        if match := REGISTERS.search(line):
            kernel.registers = int(match[1])
            shared = SHARED.search(line)
            kernel.shared = int(shared[1]) if shared else 0
    return kernels


def find_nvcc():
    named = os.environ.get("CUDACXX")
    return named or shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def fingerprint(source, arch, version):
    """Of everything that a compilation reads."""
    digest = hashlib.sha256(f"{arch} {version}".encode())
    for path in [source, *sorted(KERNELS.glob("*.h")), *sorted(KERNELS.glob("*.cuh")), pathlib.Path(__file__)]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def compile_kernels(nvcc, source, arch):
    command = [nvcc, "-std=c++17", "-O3", f"-I{ROOT}", "-Xptxas=-v", f"-gencode=arch=compute_{arch},code=sm_{arch}",
               "-cubin", "-o", os.devnull, str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check(nvcc, source, arch, version, cache):
    """(kernels, problems, compiled)"""
    stamp = cache / f"{source.stem}.sm_{arch}.{fingerprint(source, arch, version)}" if cache else None
    if stamp and stamp.exists():
        return parse(stamp.read_text()), [], False
    done = compile_kernels(nvcc, source, arch)
    if done.returncode != 0:
        return [], [f"{source.name}: does not compile for sm_{arch}:\n{done.stderr}"], True
    kernels = parse(done.stderr)
    problems = [f"{source.name}: {kernel.name} {problem} (sm_{arch})"
                for kernel in kernels for problem in kernel.problems(arch)]
    if not kernels:
        problems.append(f"{source.name}: ptxas names no kernel for sm_{arch}")
    if stamp and not problems:
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob(f"{source.stem}.sm_{arch}.*"):
            old.unlink()
        stamp.write_text(done.stderr)
    return kernels, problems, True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", action="append", choices=sorted(SHARED_KIB))
    parser.add_argument("--all", action="store_true", help="all architectures")
    parser.add_argument("--cache", type=pathlib.Path, help="where sources that passed are noted")
    parser.add_argument("--list", action="store_true", help="print registers and shared memory of every kernel")
    parser.add_argument("sources", nargs="*", type=pathlib.Path, help="default: all of runtime/kernels/cuda")
    arguments = parser.parse_args()
    nvcc = find_nvcc()
    if nvcc is None:
        print("skipped: no nvcc (looked at CUDACXX, the PATH and /usr/local/cuda/bin)")
        return SKIPPED
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    sources = arguments.sources or sorted(KERNELS.glob("*.cu"))
    archs = sorted(SHARED_KIB) if arguments.all else arguments.arch or ["90a"]
    jobs = [(source, arch) for arch in archs for source in sources]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda job: check(nvcc, *job, version, arguments.cache), jobs))
    problems = [problem for _, found, _ in results for problem in found]
    if arguments.list:
        for (source, arch), (kernels, _, _) in zip(jobs, results):
            for kernel in kernels:
                print(f"sm_{arch} {source.name} {kernel.name}: {kernel.registers} registers, {kernel.shared} bytes smem")
    for problem in problems:
        print(problem, file=sys.stderr)
    num_kernels = sum(len(kernels) for kernels, _, _ in results)
    compiled = sum(was_compiled for _, _, was_compiled in results)
    print(f"{num_kernels} kernels in {len(sources)} files for {', '.join('sm_' + arch for arch in archs)} "
          f"({compiled} compiled now): {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
