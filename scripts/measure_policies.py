#!/usr/bin/env python3
"""Quality against budget of kvrun's token policies, as a table.

measure_policies.py CHECKPOINT [--bin build/cpu/bin] [--policies P ...] [--text FILE] [--svg FILE]

Of each policy, against the same model with all tokens: kvvalidate's prefill, compress, continue (mean KL divergence, same top
token, kept_ratio of a cache of 16-bit numbers, or of float32 under that type) block by block, the recall task (which the bundled reference model has learned), and ROUGE-L
between greedy continuations of prompts of the text.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POLICIES = ["full"] + [policy.format(budget, budget - 4) for budget in (256, 128, 64)
                       for policy in ("zeromerge:budget={}", "zeromerge:budget={},sink=4", "h2o:budget={}",
                                      "snapkv:budget={},window=16", "pyramidkv:budget={},window=16,beta=5",
                                      "streamingllm:window={1}")]
POLICIES += ["think:share=0.4", "think:share=0.6", "think:share=0.8"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/cpu/bin")
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--kv-dtype", default="bfloat16")
    parser.add_argument("--text", type=Path, default=ROOT / "tests/data/texts/tinystories_heldout.txt")
    parser.add_argument("--num-sequences", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--recall", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=8, help="of --seq-len / 2 tokens, for ROUGE-L")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--svg", type=Path, help="also a plot of KL divergence against kept_ratio")
    return parser.parse_args()


def output_of(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE).stdout


def rouge_l(candidate, reference):
    """F measure of the longest common subsequence of two lists of tokens."""
    before = [0] * (len(reference) + 1)
    for word in candidate:
        row = [0]
        for i, other in enumerate(reference):
            row.append(before[i] + 1 if word == other else max(before[i + 1], row[i]))
        before = row
    common = before[-1]
    if common == 0:
        return 0.0
    precision, recall = common / len(candidate), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def words_of(text):
    return text.lower().split()


def continuations(arguments, ids_file, policy):
    output = output_of(arguments.bin / "kvrun", arguments.checkpoint, "--ids", ids_file, "--policy", policy, "--json",
                       "--quiet", "--ignore-eos", "--max-new-tokens", arguments.new_tokens, "--kv-dtype",
                       arguments.kv_dtype)
    return [words_of(text) for text in json.loads(output)["text"]]


def write_prompts(arguments, path):
    ids = json.loads(output_of(arguments.bin / "kvrun", arguments.checkpoint, "--tokenize", arguments.text))
    length = arguments.seq_len // 2
    path.write_text(json.dumps([ids[i * length:(i + 1) * length] for i in range(arguments.prompts)]))


def measure(arguments, ids_file, reference, policy):
    report = json.loads(output_of(
        arguments.bin / "kvvalidate", arguments.checkpoint, arguments.checkpoint, "--text", arguments.text, "--policy",
        policy, "--kv-dtype", arguments.kv_dtype, "--num-sequences", arguments.num_sequences, "--seq-len",
        arguments.seq_len, "--block", arguments.block, "--recall", arguments.recall, "--json", "--quiet"))
    scores = [rouge_l(*pair) for pair in zip(continuations(arguments, ids_file, policy), reference)]
    continuation, recall = report["continuation"], report["recall"]
    float32 = 1 if arguments.kv_dtype == "float32" else 2  # kvvalidate computes in it; 16-bit numbers are half
    return {"policy": policy, "kept_ratio": float32 * report["kept_ratio"], "kld": continuation["kl_divergence"]["mean"],
            "error": continuation["kl_divergence"]["standard_error"], "same_top": continuation["same_top"]["mean"],
            "recall": recall["candidate_accuracy"],
            "rouge_l": sum(scores) / len(scores)}


def plot(rows, path):
    """Circles at log10(KL divergence) over kept_ratio, a colour for each policy."""
    from math import log10

    names = sorted({row["policy"].split(":")[0] for row in rows})
    colours = dict(zip(names, ("#c33", "#36c", "#393", "#939", "#c80", "#066", "#555")))
    points = [(row, log10(max(row["kld"], 1e-6))) for row in rows]
    low, high = min(y for _, y in points), max(y for _, y in points)
    marks = []
    for row, y in points:
        x_at, y_at = 60 + 520 * row["kept_ratio"], 340 - 300 * (y - low) / max(high - low, 1e-9)
        marks.append(f'<circle cx="{x_at:.0f}" cy="{y_at:.0f}" r="5" fill="{colours[row["policy"].split(":")[0]]}">'
                     f'<title>{row["policy"]}</title></circle>')
    legend = [f'<text x="600" y="{40 + 20 * i}" fill="{colours[name]}">{name}</text>' for i, name in enumerate(names)]
    labels = (f'<text x="60" y="370">kept_ratio 0 to 1</text><text x="60" y="25">KL divergence {10**low:.1g} to '
              f'{10**high:.1g}, logarithmic</text>')
    path.write_text('<svg xmlns="http://www.w3.org/2000/svg" width="720" height="390" font-family="sans-serif" '
                    f'font-size="13"><rect x="60" y="40" width="520" height="300" fill="none" stroke="#999"/>{labels}'
                    + "".join(marks + legend) + "</svg>\n")


def main():
    arguments = parse_arguments()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        ids_file = Path(directory) / "ids.json"
        write_prompts(arguments, ids_file)
        reference = continuations(arguments, ids_file, "full")
        print("| policy | kept_ratio | KLD x 1000 | same top | recall | ROUGE-L |\n|---|---|---|---|---|---|")
        for policy in arguments.policies:
            row = measure(arguments, ids_file, reference, policy)
            rows.append(row)
            print(f"| {policy} | {row['kept_ratio']:.3f} | {1000 * row['kld']:.3g} ± {1000 * row['error']:.2g} | "
                  f"{100 * row['same_top']:.1f} % | {row['recall']:.3f} | {row['rouge_l']:.3f} |", flush=True)
    if arguments.svg:
        plot(rows, arguments.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
