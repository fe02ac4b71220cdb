#!/usr/bin/env python3
"""Measures what calibration text and its amount leave of a coded cache's divergence, and prints tables for docs/quality.md.

measure_calibration.py sources --bin build/cpu/bin MODEL --text HELDOUT [--domain FILE] [--seq-len 512] [--kept-ratio 0.25]
measure_calibration.py effort  --bin build/cpu/bin MODEL --text HELDOUT [--domain FILE] [--tokens 5000 10000 ...] [--metric fisher ...]

`sources` compares what the model writes itself, the built-in text, both, and text of the judged kind, for every scope;
`effort` compares numbers of tokens, lengths of rows and metrics. What has been measured is kept in --results (JSON lines),
so that a run that was stopped goes on.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tests" / "data" / "texts"


def measure(options, calibration, num_sequences, seq_len, scope, metric):
    """{"kld", "error", "kept_ratio", "seconds"}; seconds are those of the conversion, its own text included."""
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kvc-calibration-"))
    try:
        arguments = [options.bin / "kvconvert", options.model, "--method", "coded", "--kept-ratio", options.kept_ratio, "--sink", 0,
                     "--window", 0, "--scope", scope, "--metric", metric, "--num-sequences", num_sequences, "--seq-len", seq_len,
                     "--out", scratch / "converted", "--no-validate", "--quiet"]
        for source in calibration:
            arguments += ["--calibration", source]
        started = time.monotonic()
        subprocess.run([str(argument) for argument in arguments], check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        judged = subprocess.run(
            [str(argument) for argument in
             [options.bin / "kvvalidate", options.model, scratch / "converted", "--text", options.text, "--block", 64,
              "--num-sequences", options.num_sequences, "--seq-len", options.seq_len, "--quiet", "--json"]],
            check=True, capture_output=True, text=True)
        report = json.loads(judged.stdout)
        kld = report["continuation"]["kl_divergence"]
        return {"kld": kld["mean"], "error": kld["standard_error"], "kept_ratio": report["kept_ratio"], "seconds": seconds}
    finally:
        shutil.rmtree(scratch)


def cases_of(options):
    """[(name, arguments of measure)]"""
    if options.table == "sources":
        kinds = {"builtin": ["builtin"], "self": ["self"], "self and builtin": ["self", "builtin"], "of the judged kind": [options.domain]}
        return [(f"{scope}, {name}", (sources, options.rows, options.row_len, scope, "fisher"))
                for scope in options.scope for name, sources in kinds.items()]
    return [(f"{scope}, {metric}, {tokens} tokens in rows of {row_len}",
             ([options.domain], max(1, tokens // row_len), row_len, scope, metric))
            for scope in options.scope for metric in options.metric for row_len in options.row_lens for tokens in options.tokens]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["sources", "effort"])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--text", type=pathlib.Path, default=TEXTS / "tinystories_heldout.txt")
    parser.add_argument("--domain", type=pathlib.Path, default=TEXTS / "tinystories_calibration.txt")
    parser.add_argument("--kept-ratio", type=float, default=0.25)
    parser.add_argument("--num-sequences", type=int, default=8, help="rows that are judged")
    parser.add_argument("--seq-len", type=int, default=512, help="tokens of each")
    parser.add_argument("--scope", nargs="+", default=["layer", "head"])
    parser.add_argument("--rows", type=int, default=40, help="calibration rows of `sources`")
    parser.add_argument("--row-len", type=int, default=1024, help="tokens of each; the model's context at most")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 5120, 10240, 20480, 40960])
    parser.add_argument("--row-lens", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--metric", nargs="+", default=["fisher", "attn", "none"])
    parser.add_argument("--results", type=pathlib.Path, help="what was measured, a JSON object a line; gone on from")
    options = parser.parse_args()
    known = {}
    if options.results and options.results.exists():
        for line in options.results.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            known[entry["case"]] = entry
    print("| calibration | kept_ratio | KLD x 1000 | seconds |\n|---|---|---|---|")
    for name, arguments in cases_of(options):
        case = f"{options.model.name} {options.text.name} {options.kept_ratio} {options.table} {name}"
        if case not in known:
            known[case] = {"case": case, **measure(options, *arguments)}
            if options.results:
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known[case]) + "\n")
        entry = known[case]
        print(f"| {name} | {entry['kept_ratio']:.3f} | {1000 * entry['kld']:.3g} ± {1000 * entry['error']:.2g} |"
              f" {entry['seconds']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
