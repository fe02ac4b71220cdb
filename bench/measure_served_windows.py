#!/usr/bin/env python3
"""Measures what exact last tokens bring in an engine, at equal bytes: conversions for transformers, read by it.

scripts/with_peers.sh bench/measure_served_windows.py CHECKPOINT [--forms rotated full] [--windows 0 32 64] [--seq-len 1024]

Every row is one prompt, whose tokens are read as generated ones are: last tiles exactly, earlier ones through codes. A cache
of --seq-len tokens keeps what --kept-ratio says, its window counted. Models compute in float32. Prints KLD x 1000 to the
original and how often the most probable token is the same, a row per form and window.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import tokenizers  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from measure_engine_caches import TEXTS, clustered, rows_of  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def log_probabilities(model, row):
    return model(torch.tensor([row])).logits[0].log_softmax(-1)


def converted(options, form, window, out):
    command = [options.bin / "kvconvert", options.checkpoint, "--for", "transformers", "--scope", "head", "--form", form,
               "--kept-ratio", options.kept_ratio, "--window", window, "--context", options.seq_len, "--out", out, "--no-validate",
               "--quiet", "--seq-len", min(options.seq_len, 512), "--num-sequences", options.calibration_sequences]
    for text in options.calibration:
        command += ["--calibration", text]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)


def score(model, rows, plain):
    """Means over rows, and the standard error of the first: KLD x 1000, and the share of equal most probable tokens."""
    divergences, same = [], []
    for row, expected in zip(rows, plain):
        found = log_probabilities(model, row)
        divergences.append(1000 * (expected.exp() * (expected - found)).sum().item())
        same.append((expected.argmax(-1) == found.argmax(-1)).sum().item())
    counts = [len(row) for row in rows]
    mean, error = clustered(divergences, counts)
    return mean, error or 0, clustered(same, counts)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cpu/bin")
    parser.add_argument("--forms", nargs="+", default=["rotated", "full"])
    parser.add_argument("--windows", nargs="+", type=int, default=[0, 32, 64])
    parser.add_argument("--kept-ratio", type=float, default=0.25)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--num-sequences", type=int, default=8)
    parser.add_argument("--calibration", nargs="+", type=pathlib.Path, default=[TEXTS / "tinystories_calibration.txt"])
    parser.add_argument("--calibration-sequences", type=int, default=48, help="of 512 tokens")
    parser.add_argument("--text", nargs="+", type=pathlib.Path, default=[TEXTS / "tinystories_heldout.txt"])
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.setdefault("KVCONVERT_OPS", str(options.bin.parent / "lib/libkvconvert_ops.so"))
    import kvconvert  # noqa: F401: registers converted models

    torch.set_grad_enabled(False)
    tokenizer = tokenizers.Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
    rows = rows_of(tokenizer, options.text, options.seq_len, options.num_sequences)
    original = AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=torch.float32)
    plain = [log_probabilities(original, row) for row in rows]
    print(f"{len(rows)} rows of {len(rows[0])} tokens\n\n| form | window | KLD x 1000 | same top |\n|---|---|---|---|", flush=True)
    for form in options.forms:
        for window in options.windows:
            with tempfile.TemporaryDirectory() as folder:
                mean, error, same = score(converted(options, form, window, pathlib.Path(folder) / "out"), rows, plain)
            print(f"| `{form}` | {window} | {mean:.3g} ± {error:.1g} | {100 * same:.2f} % |", flush=True)


if __name__ == "__main__":
    main()
