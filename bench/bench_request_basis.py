#!/usr/bin/env python3
"""Times finding a request's principal directions (xKV) against numpy.linalg.svd of the same rows.

Interleaved (ABAB...) in one run with equal threads; prints each time, the excess squared error of ours over the least
possible, and the ratio of the medians. The rows are those of a prompt of 8192 tokens and four layers of 256 key
channels, random with singular values that decay as 1 / (1 + i / 16), which keys' do or faster.
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


def parse() -> argparse.Namespace:
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=root / "build/cpu/tests/request_basis_bench")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--solver", choices=["eigh", "subspace"], default="subspace")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--min-ratio", type=float, default=12)
    parser.add_argument("--max-excess", type=float, default=1e-3)
    return parser.parse_args()


def main() -> int:
    options = parse()
    os.environ.update(OMP_NUM_THREADS=str(options.threads), OPENBLAS_NUM_THREADS=str(options.threads))
    import numpy  # reads the number of threads when it is loaded

    random = numpy.random.default_rng(0)
    n = options.width
    left = numpy.linalg.qr(random.standard_normal((options.rows, n)))[0]
    right = numpy.linalg.qr(random.standard_normal((n, n)))[0]
    rows = ((left / (1 + numpy.arange(n) / 16)) @ right).astype(numpy.float32)
    numpy.linalg.svd(rows, full_matrices=False)  # both sides run once before they are timed
    ours, theirs, excess = [], [], 0.0
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "rows.f32"
        path.write_bytes(rows.tobytes())
        command = [options.binary, path, str(options.rows), str(n), str(options.rank), options.solver]
        for _ in range(options.rounds):
            result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            ours.append(result["seconds"])
            excess = max(excess, result["excess"])
            start = time.perf_counter()
            numpy.linalg.svd(rows, full_matrices=False)
            theirs.append(time.perf_counter() - start)
            print(f"ours {ours[-1]:.3f} s (excess {result['excess']:.1e})   numpy {theirs[-1]:.3f} s", flush=True)
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"{ratio:.1f} times as fast (medians, {options.solver}, rank {options.rank} of {options.rows} x {n}, "
          f"{options.threads} threads; at least {options.min_ratio:g}, excess at most {options.max_excess:g})")
    return 0 if ratio >= options.min_ratio and excess <= options.max_excess else 1


if __name__ == "__main__":
    sys.exit(main())
