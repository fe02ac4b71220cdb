#!/usr/bin/env python3
"""Measures what exact windows and sinks cost or bring at equal bytes of a cache, for contexts longer than the model's too.

measure_windows.py CHECKPOINT --bin build/cpu/bin [--methods coded commonkv] [--contexts 512 1024 4096 32768]

A conversion is planned so that a cache of CONTEXT tokens keeps what --kept-ratio says, the exact first and last tokens
counted: what these take is missing in the rate of all others. It is judged on rows that the model can read, every 64
tokens through the cache of all before them, with that rate and that window. Prints KLD x 1000 as a table for every
method, a row per choice and a column per context. Statistics are shared; what is in --out is not measured again.
"""

import argparse
import json
import pathlib
import shutil
import subprocess

from kept_results import check_settings

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tests" / "data" / "texts"
METHODS = {
    "coded": ["--method", "coded"],
    "coded, head": ["--method", "coded", "--scope", "head"],
    "commonkv": ["--method", "commonkv", "--group", "4", "--rank", "0.2"],
    "pca": ["--method", "pca"],
    "xkv-static": ["--method", "xkv-static"],
    "xkv": ["--method", "xkv"],
}


def measure(options, name, sink, window, context):
    """Mean KL divergence and its standard error, or why there is none."""
    out = options.out / "converted"
    shutil.rmtree(out, ignore_errors=True)
    convert = [options.bin / "kvconvert", options.checkpoint, *METHODS[name], "--out", out, "--work",
               options.out / f"work-{sink}", "--kept-ratio", options.kept_ratio, "--context", context, "--sink", sink,
               "--window", window, "--no-validate", "--quiet"]
    for text in options.calibration:
        convert += ["--calibration", text]
    refused = subprocess.run([str(part) for part in convert], capture_output=True, text=True)
    if refused.returncode != 0:
        return {"refused": refused.stderr.strip().split("error: ")[-1]}
    validate = [options.bin / "kvvalidate", options.checkpoint, out, "--num-sequences", options.num_sequences,
                "--seq-len", options.seq_len, "--block", 64, "--quiet", "--json"]
    for text in options.text:
        validate += ["--text", text]
    report = subprocess.run([str(part) for part in validate], capture_output=True, text=True, check=True)
    divergence = json.loads(report.stdout)["continuation"]["kl_divergence"]
    return {"kld": divergence["mean"], "error": divergence["standard_error"]}


def cell(result):
    if "refused" in result:
        return "-"
    return f"{1000 * result['kld']:.3g} ± {1000 * (result['error'] or 0):.1g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, help="directory of the results (default: <checkpoint>-windows)")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--kept-ratio", type=float, default=0.25)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 1024, 4096, 32768])
    parser.add_argument("--sinks", type=int, nargs="+", default=[0, 4])
    parser.add_argument("--windows", type=int, nargs="+", default=[0, 16, 32, 64, 128])
    parser.add_argument("--calibration", type=pathlib.Path, nargs="+", default=[TEXTS / "tinystories_calibration.txt"])
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=[TEXTS / "tinystories_heldout.txt"])
    parser.add_argument("--num-sequences", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    options = parser.parse_args()
    options.out = options.out or pathlib.Path(f"{options.checkpoint.resolve().name}-windows")
    known = options.out / "windows.json"
    check_settings(known, options, ("checkpoint", "calibration", "text", "num_sequences", "seq_len"))
    results = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    for name in options.methods:
        print(f"\n### {name}, kept_ratio {options.kept_ratio:g}\n\n| sinks, window | "
              + " | ".join(map(str, options.contexts)) + " |\n|---" * 1 + "|---" * len(options.contexts) + "|", flush=True)
        for sink in options.sinks:
            for window in options.windows:
                row = []
                for context in options.contexts:
                    key = f"{name} {options.kept_ratio:g} {sink} {window} {context}"
                    if key not in results:
                        results[key] = measure(options, name, sink, window, context)
                        known.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                    row.append(cell(results[key]))
                print(f"| {sink}, {window} | " + " | ".join(row) + " |", flush=True)
    shutil.rmtree(options.out / "converted", ignore_errors=True)


if __name__ == "__main__":
    main()
