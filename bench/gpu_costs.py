#!/usr/bin/env python3
"""What the GPU kernels move and compute at the goals' shapes, and the times that follow from a GPU's figures.

gpu_costs.py [--gpu h200] [--markdown | --json] [--measured gpu_check.json]

Counts follow the kernels' sources (gpu_cost_attention.py, gpu_cost_steps.py, gpu_cost_serving.py), for one layer of Llama-3.1-8B's shape or for what a
row's name says: bytes read and written, bytes that pass from L2 to multiprocessors, accesses to shared memory times 128, operations
of tensor-core fragments with their padding, of libraries' products, of lanes on integers and on float32 numbers. A launch takes as
long as the largest of its bounds (gpu_cost_model.py), and launches follow one another. Latencies within a block are left out, so
times are the least to expect. --measured fills the last column from a report of scripts/gpu_check.sh (default: gpu_measured_GPU.json
beside this file, where there is one).
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import sys

from gpu_cost_attention import QUARTER_WIDTHS, codes, combine, dense, latents, met_codes, project, rebuild
from gpu_cost_model import GPUS, Launch, Shape, bound_of, seconds_of
from gpu_cost_serving import attention_step, code_tokens, read_tokens
from gpu_cost_steps import (LLAMA, append, append_latents, budget_step, decode_tiles, dequantise, eigenpairs, embed, fisher,
                            needed_fisher, norm, prompt_attention, prompt_products, quantise, request_basis, row_cosines, sample, step,
                            token_match)

COUNTS = {"read": ("read, MB", 1e6), "written": ("written, MB", 1e6), "l2": ("L2, MB", 1e6), "shared": ("shared, MB", 1e6),
          "tensor": ("tensor, G", 1e9), "library": ("library, G", 1e9), "integer": ("integer, G", 1e9), "float32": ("float32, G", 1e9)}
HEADINGS = ["goal", "of", *(heading for heading, _ in COUNTS.values()), "launches", "bound", "µs", "by the model", "measured, µs"]


@dataclasses.dataclass(frozen=True)
class Row:
    goal: str  # empty: a kernel without one
    name: str  # that of the benchmark's line, where there is one
    launches: list
    limit: float = 0  # 0: there is none
    at_most: bool = False
    ratio: object = None  # of (seconds by row's name, the Gpu): what the limit is for


def share_of_copy(name, byte_count):
    return lambda seconds, gpu: byte_count / seconds[name] / gpu.copy_rate


def times_of(name, other):
    return lambda seconds, gpu: seconds[name] / seconds[other]


def rate_of(name, other):
    return times_of(other, name)


def attention_rows(gpu):
    rows = []
    for shape, least in ((Shape(16, 8192), 0.92), (Shape(1, 131072), 0.92), (Shape(1, 16384), 0.75)):
        name = f"dense bfloat16 {shape.name}"
        rows.append(Row("G1", name, dense(gpu, shape), least, ratio=share_of_copy(name, shape.rows * 4096)))
    many, few, long = Shape(16, 8192), Shape(1, 8192), Shape(16, 32768)
    base, name = f"dense bfloat16 {many.name}", f"fused layer {many.name}"
    rows += [Row("", f"dense {store} {many.name}", dense(gpu, many, store)) for store in ("float8", "int8", "int4")]
    rows.append(Row("G2", name, dense(gpu, many, sources=2), 2.08, True, times_of(name, base)))
    for ranks, least in (((384, 576), 0.65), ((192, 288), 1.25)):
        name = f"latents {ranks[0]}/{ranks[1]} {many.name}"
        rows.append(Row("G3", name, latents(gpu, many, *ranks), least, ratio=rate_of(name, base)))
    keys = f"latents 384/576 {many.name}, keys"
    rows.append(Row("G3", keys, [rebuild(many, 384)], 0.72,
                    ratio=lambda seconds, of_gpu: 2 * many.rows * 1024 * 384 / seconds[keys] / of_gpu.product_rate))
    plain = f"latents of rank 2816 {few.name}"
    product = 2 * few.rows * 1024 * 2816
    rows.append(Row("G4", plain, latents(gpu, few, 2816, 2816), 1.3, True,
                    lambda seconds, of_gpu: seconds[plain] * of_gpu.product_rate / product))
    rows.append(Row("G4", plain + ", pivots", latents(gpu, few, 2816, 2816, 24, 44), 2.5, ratio=rate_of(plain + ", pivots", plain)))
    return rows + code_rows(gpu, long, Shape(1, 131072))


def code_rows(gpu, shape, longest):
    base = f"dense bfloat16 {shape.name}"
    rows = [Row("", base, dense(gpu, shape))]

    def add(goal, name, launches, least=0.0, against=base):
        rows.append(Row(goal, name, launches, least, ratio=rate_of(name, against)))

    add("G12", f"codes rotated at kept 0.25 {shape.name}", met_codes(gpu, shape), 2.5)
    add("G12", f"codes rotated at kept 0.25 {longest.name}", met_codes(gpu, longest), 2.5, f"dense bfloat16 {longest.name}")
    add("", f"codes rotated, values of layers at kept 0.25 {shape.name}", met_codes(gpu, shape, whole=True))
    add("", f"codes pairs at kept 0.25 {shape.name}", met_codes(gpu, shape, turned=True))
    add("G12", f"codes blocks at kept 0.25 {shape.name}", codes(gpu, shape, QUARTER_WIDTHS, shape.kv_heads), 1.8)
    add("G12", f"codes of heads at kept 0.25 {shape.name}", codes(gpu, shape, {2: 58, 4: 113, 8: 56}, shape.kv_heads), 1.4)
    one = Shape(1, 32768)
    layer, product = f"codes of layers at kept 0.25 {one.name}", 2 * one.rows * 1024 * 1820
    rows.append(Row("G12", layer, codes(gpu, one, {2: 455, 4: 910, 8: 455}, 1), 1.3, True,
                    lambda seconds, of_gpu: seconds[layer] * of_gpu.product_rate / product))
    return rows


def step_rows(gpu):
    shape = "step of 32 layers of an 8B, bf16, "
    rows, short = [], " at 512 tokens"
    for count in (1, 8, 16, 32):
        name = f"{shape}{count} sequences{short}"
        rows.append(Row("G11" if count == 1 else "", name, step(gpu, count, dense(gpu, Shape(count, 512))), 0.88 if count == 1 else 0,
                        ratio=share_of_copy(name, LLAMA.weight_bytes)))
    first = f"{shape}1 sequences{short}"
    rows.append(Row("", first + ", top-p", step(gpu, 1, dense(gpu, Shape(1, 512)), top_p=True)))
    full = "step of a plan whose budget is the whole cache"
    rows.append(Row("G5", full, step(gpu, 1, dense(gpu, Shape(1, 512))), 1.03, True, times_of(full, first)))
    for sequences, slots, tokens, least in ((16, 1638, 32768, 4.0), (1, 6554, 131072, 1.85)):
        kept, whole = Shape(sequences, slots), Shape(sequences, tokens)
        name = f"budget step, {sequences} sequences, {slots} slots, 8k tokens"
        other = f"dense attention over {slots} tokens of {sequences}"
        rows.append(Row("", other, dense(gpu, kept)))
        rows.append(Row("G6", name, budget_step(gpu, kept), 1.04, True, times_of(name, other)))
        under, without = f"{shape}{sequences} sequences under {slots} slots", f"{shape}{whole.name}"
        rows.append(Row("", without, step(gpu, sequences, dense(gpu, whole))))
        rows.append(Row("G6", under, step(gpu, sequences, budget_step(gpu, kept)), least, ratio=rate_of(under, without)))
    return rows


def other_rows(gpu):
    rows, model = [], LLAMA
    for tokens, most in ((131072, 0.015), (8192, 0.08)):
        name = f"directions of a prompt of {tokens // 1024}k tokens, eigh"
        rows.append(Row("G7", name, request_basis(tokens), most, True, lambda seconds, of_gpu, name=name, tokens=tokens:
                        seconds[name] * of_gpu.product_rate / prompt_products(tokens)))
    match, eigen = "match 8k tokens with 8k", "eigenpairs of eight 4096 x 4096 in float64"
    scores = "Fisher information of 2048 x 1024 tokens"
    rows.append(Row("G8", match, token_match(8192, 8192), 1, True, lambda seconds, of_gpu: seconds[match] / 1.5e-3))
    rows.append(Row("G9", eigen, eigenpairs(8, 4096), 1, True, lambda seconds, of_gpu: seconds[eigen] / 5))
    rows.append(Row("G10", scores, fisher(2048, 1024), 0.6,
                    ratio=lambda seconds, of_gpu: needed_fisher(2048, 1024) / seconds[scores] / of_gpu.product_rate))
    shape, one = Shape(16, 8192), Shape(1, 131072)
    families = {
        "combine 66 parts of one sequence": [combine(one, 66, 128)], "project 16 sequences of rank 576": [project(shape, 576, 576)],
        "embed 16 rows": [embed(16, model.hidden)], "norm 16 rows": [norm(16, model.hidden)], "append 16 rows": [append(model, 16)],
        "append latents of 960, 16 rows": append_latents(16, 960), "sample 16, greedy": [sample(16, model.vocab)],
        "sample 16, top-p": [sample(16, model.vocab, top_p=True)],
        **{f"quantise 32k x 1024 to {store}": quantise(32768, 1024, store) for store in ("int8", "int4")},
        **{f"dequantise 32k x 1024 of {store}": dequantise(32768, 1024, store) for store in ("int8", "int4")},
        "decode 32k tokens' keys, 8 heads at kept 0.25": decode_tiles(8 * 1024, QUARTER_WIDTHS),
        "cosines of 32k rows of 1024": row_cosines(32768, 1024), "attention of a prompt of 32k in chunks of 2048": prompt_attention(32768)}
    return rows + [Row("", name, launches) for name, launches in families.items()]


def serving_rows(gpu):
    """The ops for engines; names are those of scripts/gpu_bundle/ops.py."""
    rows = []
    for shape in (Shape(1, 16384), Shape(32, 2048)):
        rows += [Row("", f"serve rotated, attend {shape.name}", attention_step(gpu, shape)),
                 Row("", f"serve rotated, code a step's tokens {shape.name}", code_tokens(shape, shape.sequences, shape.sequences)),
                 Row("", f"serve rotated, code a prompt of {shape.tokens}", code_tokens(shape, shape.tokens, shape.tokens // 32)),
                 Row("", f"serve rotated, read {shape.tokens}", [read_tokens(shape, shape.tokens)])]
    return rows


def all_rows(gpu):
    return attention_rows(gpu) + step_rows(gpu) + other_rows(gpu) + serving_rows(gpu)


def totals(launches):
    sums = collections.Counter()
    for launch in launches:
        for field in dataclasses.fields(Launch):
            value = getattr(launch, field.name)
            if field.name.endswith("product"):
                sums["library"] += value
            elif field.name in COUNTS or field.name == "launches":
                sums[field.name] += value
    return sums


def table(gpu, measured):
    """A dictionary for each row. measured: milliseconds by name."""
    rows = all_rows(gpu)
    seconds = {row.name: seconds_of(row.launches, gpu) for row in rows}
    entries = []
    for row in rows:
        sums = totals(row.launches)
        ratio = row.ratio(seconds, gpu) if row.ratio else None
        entries.append({"goal": row.goal, "name": row.name, "kernels": sorted({launch.kernel for launch in row.launches}),
                        "launches": round(sums["launches"]), "bound": bound_of(row.launches, gpu), "microseconds": 1e6 * seconds[row.name],
                        "limit": row.limit or None, "at_most": row.at_most, "ratio": ratio,
                        "met": None if not row.limit else ratio <= row.limit if row.at_most else ratio >= row.limit,
                        "measured_microseconds": 1e3 * measured[row.name] if row.name in measured else None,
                        **{count: sums[count] for count in COUNTS}})
    return entries


def number(value):
    """Three digits, without an exponent."""
    return "-" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.005 else "0.00"


def markdown(entries):
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for entry in entries:
        limit = f"{'≤' if entry['at_most'] else '≥'} {entry['limit']:g}" if entry["limit"] else ""
        verdict = "" if entry["ratio"] is None else f"{entry['ratio']:.2g}" if entry["ratio"] < 0.1 else f"{entry['ratio']:.2f}"
        verdict += ", missed" if entry["met"] is False else ""
        of_run = "not measured" if entry["measured_microseconds"] is None else number(entry["measured_microseconds"])
        cells = [f"{entry['goal']} {limit}".strip(), entry["name"], *(number(entry[name] / unit) for name, (_, unit) in COUNTS.items()),
                 f"{entry['launches']:,}", entry["bound"], number(entry["microseconds"]), verdict, of_run]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def read_measured(path, gpu):
    """Milliseconds by name from a report of scripts/gpu_check.sh."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        device = report["device"]
        parts = [part for part in report.values() if isinstance(part, dict)]
        parts += [case for part in parts for case in part.get("cases", [])]  # those of the bundle
        lines = [line for part in parts for line in part.get("results", [])]
        measured = {}
        for line in lines:
            measured.setdefault(line["name"], float(line["ms"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SystemExit(f"gpu_costs: --measured {path}: expected a report of scripts/gpu_check.sh, found {error!r}") from error
    if gpu.name not in device:
        raise SystemExit(f"gpu_costs: --measured {path}: measured on {device!r}, the model is of the {gpu.name}; choose with --gpu")
    return measured


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=sorted(GPUS), default="h200")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="a table (default)")
    form.add_argument("--json", action="store_true")
    parser.add_argument("--measured", type=pathlib.Path, metavar="FILE", help="a report of scripts/gpu_check.sh")
    arguments = parser.parse_args()
    gpu = GPUS[arguments.gpu]
    file = arguments.measured or pathlib.Path(__file__).with_name(f"gpu_measured_{arguments.gpu}.json")
    measured = read_measured(file, gpu) if arguments.measured or file.exists() else {}
    entries = table(gpu, measured)
    if arguments.json:
        without = sorted(set(measured) - {entry["name"] for entry in entries})
        print(json.dumps({"gpu": dataclasses.asdict(gpu), "rows": entries, "measured_without_a_row": without}, indent=2))
    else:
        sys.stdout.write(markdown(entries))


if __name__ == "__main__":
    main()
