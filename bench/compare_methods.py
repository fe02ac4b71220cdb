#!/usr/bin/env python3
"""Converts a checkpoint with every method at equal kept_ratio and judges all on the same held-out text.

compare_methods.py CHECKPOINT --bin build/cpu/bin [--kept-ratio 0.5 0.25] [--methods coded palu] [--out DIR]

Caches that other engines ship (turboquant, kivi, nvfp4, mxfp4) have one size each; measure_engine_caches.py scores them,
with transformers. Policies of kvpress are scored by its package (measure_kvpress.py).

Every 64 tokens (--block) of a row are scored through the cache of all tokens before them, which were prefilled exactly and
then compressed. The first 4 tokens stay exact (of coded caches none: tiles of 32 tokens then end where rows do), no window
does. A scored token reads its own block exactly, half of it on average; coded caches compress a tile as soon as it is whole,
so there 16 tokens on average. Models compute in float32 and caches store 16-bit numbers (or what a method names);
kept_ratio counts every byte against the original's cache of 16-bit numbers; a float32 checkpoint is rounded to float16
first. Statistics are computed once and shared. Writes comparison.json, comparison.md and comparison.svg; what is there
already is not measured again; what was refused is tried again.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import shutil
import subprocess

from comparison_plot import RATIOS, plot
from half_checkpoint import in_16_bits
from kept_results import check_settings

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tests" / "data" / "texts"
# The widest latent that a kept_ratio leaves room for: tried in this order.
RANKS = [["--rank", f"{percent / 100:g}"] for percent in (70, 60, 50, 40, 35, 30, 25, 20, 16, 13, 11, 9, 7, 5, 4, 3)]
# Those of engine_caches.py.
ENGINE_CACHES = {
    "turboquant k8v4": 0.3828, "turboquant 4bit": 0.2617, "turboquant k3v4": 0.2305, "turboquant 3bit": 0.1992,
    "turboquant k8v4, protected layers": 0.3828, "turboquant 4bit, protected layers": 0.2617,
    "turboquant k3v4, protected layers": 0.2305, "turboquant 3bit, protected layers": 0.1992,
    "kivi int4": 0.3125, "kivi int2": 0.1875, "kivi int4, no window": 0.3125, "kivi int2, no window": 0.1875,
    "nvfp4": 0.2812, "mxfp4": 0.2656, "kvquant nuq4": 0.29, "kvquant nuq3": 0.2275,
}
# Policies of kvpress that measure_kvpress.py can score.
PRESSES = ("kvzip", "snapkv", "keydiff", "tova", "expected attention", "adakv, expected attention", "knorm")


@dataclasses.dataclass
class Method:
    convert: list[str] | None  # arguments of kvconvert; None: the checkpoint as it is
    choices: list[list[str]] = dataclasses.field(default_factory=lambda: [[]])  # the first that is not refused is added
    validate: list[str] = dataclasses.field(default_factory=lambda: ["--kv-dtype", "float16"])
    sink: int = 4
    only: float | None = None  # the one kept_ratio that it can have, stated without a row's exact tokens
    press: str | None = None  # of kvpress
    engine: bool = False  # a cache of engine_caches.py; `only` is then that of heads of 128 channels


METHODS = {
    "coded": Method(["--method", "coded"], sink=0),
    "coded, group": Method(["--method", "coded", "--scope", "group"], sink=0),
    "coded, layer": Method(["--method", "coded", "--scope", "layer"], sink=0),
    "coded, head": Method(["--method", "coded", "--scope", "head"], sink=0),
    **{f"coded, head, {form}": Method(["--method", "coded", "--scope", "head", "--form", form], sink=0)
       for form in ("keys", "blocks:2", "blocks:4", "pairs", "rotated")},
    "commonkv": Method(["--method", "commonkv", "--group", "4"], RANKS),
    "commonkv, as its paper": Method(["--method", "commonkv", "--preset", "paper", "--group", "4"], RANKS),
    "palu": Method(["--method", "palu"]),
    "pca": Method(["--method", "pca"]),
    "pca, metric fisher": Method(["--method", "pca", "--metric", "fisher"]),
    "pca, int8 latents": Method(["--method", "pca", "--kv-dtype", "int8"], validate=["--kv-dtype", "int8"]),
    "pca, single layers": Method(["--method", "pca", "--group", "1"]),
    "xkv-static": Method(["--method", "xkv-static"]),
    "xkv-static, metric fisher": Method(["--method", "xkv-static", "--metric", "fisher"]),
    "xkv": Method(["--method", "xkv"]),
    "xkv, joint": Method(["--method", "xkv", "--joint"]),
    "xkv, single layers": Method(["--method", "xkv", "--group", "1"]),
    "minicache": Method(["--method", "minicache"], only=0.75),
    "minicache, inverted": Method(["--method", "minicache", "--minicache", "inverted"], only=0.75),
    "fusedkv": Method(["--method", "fusedkv", "--force"], only=0.5),
    "fusedkv, matrices": Method(["--method", "fusedkv", "--fusion", "matrices", "--force"], only=0.5),
    "int8 cache": Method(None, validate=["--kv-dtype", "int8"], only=0.5625),
    "int4 cache": Method(None, validate=["--kv-dtype", "int4"], only=0.3125),
    "int2 cache": Method(None, validate=["--kv-dtype", "int2"], only=0.1875),
    **{name: Method(None, only=only, engine=True) for name, only in ENGINE_CACHES.items()},
    **{f"kvpress {name}": Method(None, press=name) for name in PRESSES},
}


ALL_ALIKE = ("palu", "minicache", "fusedkv")  # methods that store all tokens in one way


def run(command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def convert(options, directory, method, kept_ratio):
    """The directory to judge and what was chosen, or None and the program's refusal."""
    if method.convert is None:
        return options.checkpoint, ""
    out = directory / "converted"
    for choice in method.choices:
        if out.exists():
            shutil.rmtree(out)
        command = [options.bin / "kvconvert", options.checkpoint, "--out", out, "--work", directory / "work",
                   *([] if method.convert[1] in ALL_ALIKE else ["--sink", method.sink, "--window", 0]),
                   "--context", options.seq_len, "--seq-len", options.seq_len,
                   "--num-sequences", 80, "--quiet", "--no-validate", *method.convert,
                   *([] if method.convert[1] in ("coded", *ALL_ALIKE) else ["--block", options.block]),
                   *choice, *([] if method.only else ["--kept-ratio", kept_ratio])]
        for text in options.calibration:
            command += ["--calibration", text]
        refused = run([*command, "--plan"]) if len(method.choices) > 1 else None
        if refused is None or refused.returncode == 0:
            refused = run(command)
        if refused.returncode == 0:
            return out, " ".join(choice)
    return None, refused.stderr.strip().split("error: ")[-1]


def by_transformers(options, script, *arguments):
    """The results of a script that scores by transformers, or its refusal."""
    process = run([*script, options.checkpoint, *arguments, "--num-sequences", options.num_sequences, "--seq-len", options.seq_len,
                   "--block", options.block, "--recall", options.recall, "--json", "--text", *options.text])
    if process.returncode != 0:
        return None, {"refused": process.stderr.strip().split("\n")[-1]}
    return json.loads(process.stdout), None


def measure_engine(options, name):
    script = ROOT / "scripts" / "with_peers.sh", ROOT / "bench" / "measure_engine_caches.py"
    found, refusal = by_transformers(options, script, "--caches", name, "--calibration", *options.calibration)
    return refusal or found[name]


def measure_press(options, name, kept_ratio):
    script = [ROOT / "bench" / "measure_kvpress.py"]
    found, refusal = by_transformers(options, script, "--presses", name, "--kept-ratio", kept_ratio)
    return refusal or found[name][str(kept_ratio)]


def measure(options, directory, method, kept_ratio):
    candidate, detail = convert(options, directory, method, kept_ratio)
    if candidate is None:
        return {"refused": detail}
    command = [options.bin / "kvvalidate", options.checkpoint, candidate, "--num-sequences", options.num_sequences,
               "--seq-len", options.seq_len, "--block", options.block, "--recall", options.recall, "--quiet", "--json",
               *method.validate]
    for text in options.text:
        command += ["--text", text]
    process = run(command)
    if process.returncode != 0:
        return {"refused": process.stderr.strip().split("error: ")[-1]}
    report = json.loads(process.stdout)
    comparison, recall = report["continuation"], report["recall"]
    return {"settings": detail, "kept_ratio": report["kept_ratio"], "kld": comparison["kl_divergence"]["mean"],
            "kld_error": comparison["kl_divergence"]["standard_error"],
            "perplexity_ratio": comparison["perplexity_ratio"], "same_top": comparison["same_top"]["mean"],
            "recall": recall and recall["candidate_accuracy"], "original_recall": recall and recall["reference_accuracy"]}


def table(results, name, kept_ratios):
    """Of the methods that were asked for one of these ratios."""
    lines = [f"### {name}", "", "| method | kept_ratio | KLD x 1000 | perplexity ratio | same top | recall |",
             "|---|---|---|---|---|---|"]
    rows = [(name, result) for name, by_ratio in results.items() for ratio, result in by_ratio.items()
            if float(ratio) in kept_ratios]
    rows.sort(key=lambda row: row[1].get("kld", math.inf))
    for name, result in rows:
        if "refused" in result:
            lines.append(f"| {name} | refused: {result['refused']} | | | | |")
            continue
        recall = "-" if result["recall"] is None else f"{result['recall']:.3f}"
        detail = f" ({result['settings']})" if result["settings"] else ""
        error = "" if result["kld_error"] is None else f" ± {1000 * result['kld_error']:.2g}"
        lines.append(f"| {name}{detail} | {result['kept_ratio']:.3f} | {1000 * result['kld']:.4g}{error} | "
                     f"{result['perplexity_ratio']:.4f} | {100 * result['same_top']:.1f} % | {recall} |")
    return "\n".join(lines) + "\n"


def tables_of(options, results):
    fixed = {method.only for method in METHODS.values() if method.only}
    return [*(table(results, f"kept_ratio {ratio:g}", [ratio]) for ratio in options.kept_ratio),
            table(results, "Methods of one size", fixed - set(options.kept_ratio))]


def write(options, results):
    subject = options.subject
    (options.out / "comparison.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    tables = "\n".join(tables_of(options, results))
    (options.out / "comparison.md").write_text(f"## {subject}\n\n{tables}", encoding="utf-8")
    (options.out / "comparison.svg").write_text(plot(results, subject), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, help="directory of the results (default: <checkpoint>-comparison)")
    parser.add_argument("--kept-ratio", type=float, nargs="+", default=list(RATIOS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--calibration", type=pathlib.Path, nargs="+", default=[TEXTS / "tinystories_calibration.txt"])
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=[TEXTS / "tinystories_heldout.txt"])
    parser.add_argument("--num-sequences", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--block", type=int, default=64,
                        help="tokens that are scored together, and compressed together: none of them is read through the cache "
                             "before it")
    parser.add_argument("--recall", type=int, default=10, help="lists of facts asked back (0: none; a model whose context is under 542 tokens has no room for them)")
    options = parser.parse_args()
    options.subject = options.checkpoint.resolve().name
    options.out = options.out or pathlib.Path(f"{options.subject}-comparison")
    known = options.out / "comparison.json"
    results = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    check_settings(known, options, ("checkpoint", "calibration", "text", "num_sequences", "seq_len", "block", "recall"))
    options.checkpoint = in_16_bits(options.checkpoint, options.out / "checkpoint")
    for name in options.methods:
        method = METHODS[name]
        by_ratio = results.setdefault(name, {})
        for kept_ratio in [method.only] if method.only else options.kept_ratio:
            if "kld" not in by_ratio.get(f"{kept_ratio:g}", {}):
                by_ratio[f"{kept_ratio:g}"] = (
                    measure_engine(options, name) if method.engine else
                    measure_press(options, method.press, kept_ratio) if method.press else
                    measure(options, options.out, method, kept_ratio))
                write(options, results)
    print("\n".join(tables_of(options, results)), flush=True)
    for temporary in ("work", "converted", "checkpoint"):
        shutil.rmtree(options.out / temporary, ignore_errors=True)
    write(options, results)


if __name__ == "__main__":
    main()
