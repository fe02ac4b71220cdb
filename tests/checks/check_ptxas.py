#!/usr/bin/env python3
"""Compiles every CUDA kernel and reads what ptxas says of it: fails on register spills, on local memory, and on
static shared memory above the architecture's limit.

    check_ptxas.py [--arch 90a]... [--all] [--cache DIR] [--record] [--list] [FILE.cu...]

Needs nvcc (CUDACXX, the PATH or /usr/local/cuda/bin) and no GPU; exit code 77 without it. A source is not compiled where
ptxas_passed.json, or the directory of --cache, says that the same text passed with the same nvcc: the text behind the
preprocessor, with all headers. --record writes what passes into ptxas_passed.json; --list does
not go by that file.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = ROOT / "runtime" / "kernels" / "cuda"
PASSED = pathlib.Path(__file__).with_name("ptxas_passed.json")  # fingerprints by source and architecture
# KiB of shared memory that a block may have (CUDA C++ Programming Guide, technical specifications).
SHARED_KIB = {"80": 163, "90a": 227, "100a": 227, "120": 99}
SKIPPED = 77

ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
LINE_MARKER = re.compile(rb"^# \d+ .*\n", re.MULTILINE)  # names places of files
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


def nvcc_command(nvcc, source, arch):
    return [nvcc, "-std=c++17", "-O3", f"-I{ROOT}", "-Xptxas=-v", f"-gencode=arch=compute_{arch},code=sm_{arch}", str(source)]


def fingerprint(nvcc, source, arch, version):
    """Of all that a compilation reads, wherever the files lie; None where the preprocessor fails."""
    done = subprocess.run([*nvcc_command(nvcc, source, arch), "-E"], capture_output=True, check=False)
    if done.returncode != 0:
        return None
    options = " ".join(nvcc_command("nvcc", source.name, arch)).replace(str(ROOT), "")
    return hashlib.sha256(f"{options} {version} {SHARED_KIB}".encode() + LINE_MARKER.sub(b"", done.stdout)).hexdigest()


def check(nvcc, source, arch, version, cache, passed):
    """(kernels, problems, compiled, fingerprint). passed: fingerprints that need no compilation."""
    text = fingerprint(nvcc, source, arch, version)
    stamp = cache / f"{source.stem}.sm_{arch}.{text}" if cache else None
    if text in passed:
        return [], [], False, text
    if stamp and stamp.exists():
        return parse(stamp.read_text()), [], False, text
    command = [*nvcc_command(nvcc, source, arch), "-cubin", "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [], [f"{source.name}: does not compile for sm_{arch}:\n{done.stderr}"], True, text
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
    return kernels, problems, True, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", action="append", choices=sorted(SHARED_KIB))
    parser.add_argument("--all", action="store_true", help="all architectures")
    parser.add_argument("--cache", type=pathlib.Path, help="where sources that passed are noted")
    parser.add_argument("--record", action="store_true", help="note what passes in ptxas_passed.json")
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
    record = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    passed = set() if arguments.list else set(record.values())
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda job: check(nvcc, *job, version, arguments.cache, passed), jobs))
    problems = [problem for _, found, _, _ in results for problem in found]
    if arguments.record:
        record |= {f"{source.name} sm_{arch}": text for (source, arch), (_, found, _, text) in zip(jobs, results) if not found}
        PASSED.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if arguments.list:
        for (source, arch), (kernels, _, _, _) in zip(jobs, results):
            for kernel in kernels:
                print(f"sm_{arch} {source.name} {kernel.name}: {kernel.registers} registers, {kernel.shared} bytes smem")
    for problem in problems:
        print(problem, file=sys.stderr)
    compiled = sum(was_compiled for _, _, was_compiled, _ in results)
    print(f"{len(sources)} files for {', '.join('sm_' + arch for arch in archs)} ({compiled} compiled now): {len(problems)} problems")
    if compiled and not arguments.record and not problems:
        print(f"{PASSED.name} lacks {compiled} of them, which takes minutes in a fresh clone: run {pathlib.Path(__file__).name} --record")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
