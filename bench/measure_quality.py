#!/usr/bin/env python3
"""Measures what variants of a conversion cost at equal KV bytes, and prints the tables of docs/quality.md.

measure_quality.py --bin build/cpu/bin [--model tests/data/reference-llama] [--kept-ratio 0.5 0.35 0.25] [--json FILE]

Every variant is calibrated on the same text and judged on the same held-out text; calibration and Fisher
information are computed once.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tests" / "data" / "texts"
# {kept_ratio: rank}: the widest latent that leaves some tokens unmerged.
RANKS = {0.5: "0.7", 0.35: "0.4", 0.25: "0.2"}
VARIANTS = {
    "commonkv": (),
    "commonkv, least squares without Fisher weights": ("--no-ls-fisher",),
    "commonkv, factor joint": ("--factor", "joint"),
    "commonkv, factor plain": ("--factor", "plain"),
    "commonkv, merge mean": ("--merge", "mean"),
    "commonkv, merge fisher": ("--merge", "fisher"),
    "commonkv, without refit": ("--no-refit",),
    "commonkv, granularity group": ("--granularity", "group"),
    "commonkv, preset paper": ("--preset", "paper"),
    "palu": ("--method", "palu"),
}


def settings_of(variant, kept_ratio):
    settings = [*VARIANTS[variant], "--kept-ratio", str(kept_ratio)]
    return settings if variant == "palu" else [*settings, "--group", "4", "--rank", RANKS[kept_ratio]]


def measure(options, scratch, variant, kept_ratio):
    """The report of one variant, or the reason why the program refused it."""
    out = scratch / "converted"
    if out.exists():
        shutil.rmtree(out)
    process = subprocess.run(
        [options.bin / "kvconvert", options.model, "--out", out, "--work", scratch / "work", "--calibration",
         TEXTS / "tinystories_calibration.txt", "--validation-text", TEXTS / "tinystories_heldout.txt", "--quiet",
         "--json", *settings_of(variant, kept_ratio)], capture_output=True, text=True)
    if process.returncode != 0:
        return process.stderr.strip()
    return json.loads(process.stdout)["validation"]


def row(variant, report):
    if isinstance(report, str):
        return f"| {variant} | refused: {report.split('error: ')[-1]} | | | |"
    comparison = report["continuation"]
    kld = comparison["kl_divergence"]
    return (f"| {variant} | {report['kept_ratio']:.3f} | {1000 * kld['mean']:.2f} ± {1000 * kld['standard_error']:.2f}"
            f" | {comparison['perplexity_ratio']:.4f} | {100 * comparison['same_top']['mean']:.2f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "tests" / "data" / "reference-llama")
    parser.add_argument("--kept-ratio", type=float, nargs="+", default=list(RANKS), choices=list(RANKS))
    parser.add_argument("--json", type=pathlib.Path, help="also write every report here")
    options = parser.parse_args()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kvc-quality-"))
    reports = {}
    try:
        for kept_ratio in options.kept_ratio:
            print(f"\n### Target {kept_ratio}, rank {RANKS[kept_ratio]}\n")
            print("| variant | kept_ratio | KLD x 1000 | perplexity ratio | same top |\n|---|---|---|---|---|")
            for variant in VARIANTS:
                report = measure(options, scratch, variant, kept_ratio)
                reports[f"{kept_ratio} {variant}"] = report
                print(row(variant, report), flush=True)
    finally:
        shutil.rmtree(scratch)
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
