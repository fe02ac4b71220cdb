#!/usr/bin/env python3
"""Times our factorisation of one group's projections against torch.linalg.svd of the same matrix.

Interleaved (ABAB...) in one run with equal threads; prints each time and the ratio of the medians. The matrix
is that of four layers of an 8B model, [2 * 4 * 1024, 4096], random. Ours decomposes in float64; --dtype says what
torch.linalg.svd gets: float64, the same matrix at the same precision, or float32, as the weights are stored.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

ROWS, HIDDEN = 2 * 4 * 1024, 4096


def ours(binary: pathlib.Path, matrix: pathlib.Path, threads: int) -> float:
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    out = subprocess.run([binary, "--benchmark_filter=FactorizeGroup", "--benchmark_format=json", matrix], env=environment, check=True,
                         capture_output=True, text=True).stdout
    result = json.loads(out)["benchmarks"][0]
    if not result["optimum_error"] < 1e-6:
        sys.exit(f"the factorisation misses the optimum by {result['optimum_error']}")
    return result["real_time"] / 1000


def theirs(matrix: torch.Tensor, full: bool) -> float:
    start = time.perf_counter()
    torch.linalg.svd(matrix, full_matrices=full)
    return time.perf_counter() - start


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=root / "build/cpu/tests/convert_bench")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float32")
    parser.add_argument("--full-matrices", action="store_true", help="torch.linalg.svd's default; slower")
    parser.add_argument("--max-ratio", type=float, default=1 / 2)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    matrix = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(0))
    times = {"ours": [], "torch": []}
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "matrix.f32"
        path.write_bytes(matrix.numpy().tobytes())
        for _ in range(options.rounds):
            times["ours"].append(ours(options.binary, path, options.threads))
            times["torch"].append(theirs(matrix.to(getattr(torch, options.dtype)), options.full_matrices))
            print(f"ours {times['ours'][-1]:.2f} s   torch.linalg.svd {times['torch'][-1]:.2f} s", flush=True)
    ratio = statistics.median(times["ours"]) / statistics.median(times["torch"])
    print(f"ratio of medians {ratio:.3f} (torch.linalg.svd in {options.dtype}, {options.threads} threads, "
          f"limit {options.max_ratio:.3f})")
    return 0 if ratio <= options.max_ratio else 1


if __name__ == "__main__":
    sys.exit(main())
