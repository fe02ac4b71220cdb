#!/usr/bin/env python3
"""Converts a checkpoint with every method at equal kept_ratio and judges all on the same held-out text.

compare_methods.py CHECKPOINT --bin build/cpu/bin [--kept-ratio 0.5 0.25] [--methods coded palu] [--out DIR]

Caches that other engines ship (turboquant, kivi, nvfp4, mxfp4) have one size each; measure_engine_caches.py scores them,
with transformers.

Every 64 tokens of a row are scored through the cache of all tokens before them, which were prefilled exactly and then
compressed. The first 4 tokens stay exact (of coded caches none: blocks of 32 tokens then end where rows do), no window
does. Models compute in float32 and caches store 16-bit numbers (or what a method names); kept_ratio counts every byte
against the original's cache of 16-bit numbers; a float32 checkpoint is rounded to float16 first. Statistics are
computed once and shared. Writes comparison.json, comparison.md and comparison.svg; what is there already is not measured again; what
was refused is tried again.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import shutil
import struct
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tests" / "data" / "texts"
RATIOS = (0.5, 0.35, 0.25, 0.125, 0.0625)
# Tokens that are scored together, and compressed together: none of them is read through the cache before it.
BLOCK = ("--block", "64")
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


@dataclasses.dataclass
class Method:
    convert: list[str] | None  # arguments of kvconvert; None: the checkpoint as it is
    choices: list[list[str]] = dataclasses.field(default_factory=lambda: [[]])  # the first that is not refused is added
    validate: list[str] = dataclasses.field(default_factory=lambda: ["--kv-dtype", "float16"])
    sink: int = 4
    only: float | None = None  # the one kept_ratio that it can have, stated without a row's exact tokens
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
}
COLOURS = ("#c0392b", "#e67e22", "#f1c40f", "#d35400", "#2980b9", "#8e44ad", "#27ae60", "#16a085", "#7f8c8d", "#2c3e50",
           "#e84393", "#6c5ce7", "#00b894", "#636e72", "#b2bec3", "#fd79a8", "#55efc4", "#0984e3", "#a29bfe", "#fdcb6e",
           "#00cec9", "#b33939", "#218c74", "#cc8e35")


def halved(path, out):
    """Writes a safetensors file with its float32 tensors in float16."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header, parts, offset = json.loads(data[8:start]), [], 0
    for tensor in sorted((t for name, t in header.items() if name != "__metadata__"), key=lambda t: t["data_offsets"]):
        first, last = tensor["data_offsets"]
        part = data[start + first:start + last]
        if tensor["dtype"] == "F32":
            count = len(part) // 4
            part = struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", part))
            tensor["dtype"] = "F16"
        parts.append(part)
        tensor["data_offsets"] = [offset, offset + len(part)]
        offset += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def in_16_bits(checkpoint, directory):
    """The checkpoint, or a float32 one in float16, so that kept_ratio compares with a 16-bit cache."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    name = "torch_dtype" if "torch_dtype" in config else "dtype"
    if config.get(name) != "float32":
        return checkpoint
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for file in checkpoint.iterdir():
        if file.name == "config.json":
            (directory / file.name).write_text(json.dumps({**config, name: "float16"}, indent=2) + "\n", encoding="utf-8")
        elif file.suffix == ".safetensors":
            halved(file, directory / file.name)
        else:
            shutil.copy(file, directory / file.name)
    return directory


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
                   "--sink", method.sink, "--window", 0, "--context", options.seq_len, "--seq-len", options.seq_len,
                   "--num-sequences", 80, "--quiet", "--no-validate", *method.convert,
                   *([] if "coded" in method.convert else BLOCK),
                   *choice, *([] if method.only else ["--kept-ratio", kept_ratio])]
        for text in options.calibration:
            command += ["--calibration", text]
        refused = run([*command, "--plan"]) if len(method.choices) > 1 else None
        if refused is None or refused.returncode == 0:
            refused = run(command)
        if refused.returncode == 0:
            return out, " ".join(choice)
    return None, refused.stderr.strip().split("error: ")[-1]


def measure_engine(options, name):
    process = run([ROOT / "scripts" / "with_peers.sh", ROOT / "bench" / "measure_engine_caches.py", options.checkpoint,
                   "--caches", name, "--num-sequences", options.num_sequences, "--seq-len", options.seq_len,
                   "--recall", options.recall, "--json", "--text", *options.text, "--calibration", *options.calibration])
    if process.returncode != 0:
        return {"refused": process.stderr.strip().split("\n")[-1]}
    return json.loads(process.stdout)[name]


def measure(options, directory, method, kept_ratio):
    candidate, detail = convert(options, directory, method, kept_ratio)
    if candidate is None:
        return {"refused": detail}
    command = [options.bin / "kvvalidate", options.checkpoint, candidate, "--num-sequences", options.num_sequences,
               "--seq-len", options.seq_len, *BLOCK, "--recall", options.recall, "--quiet", "--json",
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
        lines.append(f"| {name}{detail} | {result['kept_ratio']:.3f} | {1000 * result['kld']:.4g} ± "
                     f"{1000 * (result['kld_error'] or 0):.2g} | {result['perplexity_ratio']:.4f} | "
                     f"{100 * result['same_top']:.1f} % | {recall} |")
    return "\n".join(lines) + "\n"


def tables_of(options, results):
    fixed = {method.only for method in METHODS.values() if method.only}
    return [*(table(results, f"kept_ratio {ratio:g}", [ratio]) for ratio in options.kept_ratio),
            table(results, "Methods of one size", fixed - set(options.kept_ratio))]


class Axis:
    """A logarithmic axis from the decade below `low` to the one above `high`, over pixels first .. last."""

    def __init__(self, low, high, first, last):
        self.low, self.high = math.log10(low), math.log10(high)
        self.first, self.last = first, last

    def at(self, value):
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)


def panel(results, key, title, top, bottom):
    """One plot of `key` against kept_ratio between two heights."""
    lines = {name: sorted((r["kept_ratio"], r[key]) for r in by_ratio.values() if r.get(key))
             for name, by_ratio in results.items()}
    values = [value for line in lines.values() for _, value in line]
    if not values:
        return []
    log = key == "kld"
    low, high = (10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))) if log else (
        min(values) - 0.01, max(values) + 0.01)
    ratios = [ratio for line in lines.values() for ratio, _ in line]
    x = Axis(min(ratios) * 0.9, max(*ratios, 0.55) * 1.1, 70, 560)
    y = Axis(low, high, bottom, top) if log else Axis(10 ** low, 10 ** high, bottom, top)
    height = y.at if log else lambda value: y.at(10 ** value)
    parts = [f'<text x="70" y="{top - 10}" font-weight="bold">{title}</text>',
             f'<path d="M70 {top}V{bottom}H560" fill="none" stroke="#999"/>']
    ticks = [10 ** d for d in range(round(math.log10(low)), round(math.log10(high)) + 1)] if log else [
        low + (high - low) * i / 4 for i in range(5)]
    for tick in ticks:
        parts.append(f'<text x="64" y="{height(tick) + 4:.0f}" text-anchor="end">{tick:.3g}</text>'
                     f'<path d="M70 {height(tick):.1f}H560" stroke="#eee"/>')
    for ratio in RATIOS:
        if x.first <= x.at(ratio) <= x.last:
            parts.append(f'<text x="{x.at(ratio):.0f}" y="{bottom + 16}" text-anchor="middle">{ratio:g}</text>')
    for index, (name, line) in enumerate(lines.items()):
        points = [(x.at(ratio), height(value)) for ratio, value in line]
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{px:.1f},{py:.1f}" for px, py in points) + '"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
    return parts


def plot(results, subject):
    legend = [f'<rect x="590" y="{50 + 18 * i}" width="12" height="12" fill="{COLOURS[i % len(COLOURS)]}"/>'
              f'<text x="608" y="{61 + 18 * i}">{name}</text>' for i, name in enumerate(results)]
    panels = [("kld", "KL divergence (nats)", 270), ("perplexity_ratio", "perplexity ratio", 170),
              ("recall", "recall accuracy", 170)]
    parts, top = [f'<text x="70" y="22" font-size="15">{subject}: quality against KV bytes kept</text>', *legend], 60
    for key, title, height in panels:
        drawn = panel(results, key, title, top, top + height)
        parts += drawn
        top += height + 70 if drawn else 0
    bottom = max(top - 20, 70 + 18 * len(results))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {bottom}" font-family="sans-serif" font-size="12">'
            f'<rect width="860" height="{bottom}" fill="white"/>' + "\n".join(parts) + "</svg>\n")


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
    parser.add_argument("--recall", type=int, default=10, help="lists of facts asked back (0: none; a model whose context is under 542 tokens has no room for them)")
    options = parser.parse_args()
    options.subject = options.checkpoint.resolve().name
    options.out = options.out or pathlib.Path(f"{options.subject}-comparison")
    known = options.out / "comparison.json"
    results = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    options.out.mkdir(parents=True, exist_ok=True)
    options.checkpoint = in_16_bits(options.checkpoint, options.out / "checkpoint")
    for name in options.methods:
        method = METHODS[name]
        by_ratio = results.setdefault(name, {})
        for kept_ratio in [method.only] if method.only else options.kept_ratio:
            if "kld" not in by_ratio.get(f"{kept_ratio:g}", {}):
                by_ratio[f"{kept_ratio:g}"] = (
                    measure_engine(options, name) if method.engine else
                    measure(options, options.out, method, kept_ratio))
                write(options, results)
    print("\n".join(tables_of(options, results)), flush=True)
    for temporary in ("work", "converted", "checkpoint"):
        shutil.rmtree(options.out / temporary, ignore_errors=True)
    write(options, results)


if __name__ == "__main__":
    main()
