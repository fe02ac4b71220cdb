#!/usr/bin/env python3
"""What a step of generation costs under a token policy: after a long text, after a short one, and with all tokens.

bench_policy_step.py MODEL [--policy zeromerge:budget=1638] [--tokens 32000] [--rounds 20] [--peer]

All three take turns in one process (tests/bench/policy_step_bench.cpp). With --peer (needs torch) the same policy as the
paper's code has it, tensors joined and selected anew in every step, runs beside it: one layer's attention, scores,
selection and merge in float32, per KV head, at the shapes of MODEL.

A model of 0.5B's shape: make_random_checkpoint.py OUT --layers 24 --hidden 896 --intermediate 4864 --heads 14
--kv-heads 2 --vocab 151936 --max-position 40000 --shards 1
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--bench", type=Path, default=ROOT / "build/cpu/tests/policy_step_bench")
    parser.add_argument("--policy", default="zeromerge:budget=1638", help="with a budget in tokens")
    parser.add_argument("--tokens", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer", action="store_true")
    return parser.parse_args()


def peer_seconds(config, budget, steps):
    """Median seconds of one layer's step: ZeroMerge with one residual slot, budget full, decode as in the paper."""
    import torch

    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config["head_dim"]
    ring, decay, alpha = int(0.4 * budget), 0.98, 0.6
    context = budget - ring - 1
    key, value = torch.randn(kv_heads, budget, width), torch.randn(kv_heads, budget, width)
    score, count = torch.rand(kv_heads, budget), torch.ones(kv_heads, budget)
    seconds = []
    for _ in range(steps):
        query = torch.randn(kv_heads, heads // kv_heads, width)
        start = time.perf_counter()
        key = torch.cat([key, torch.randn(kv_heads, 1, width)], 1)  # residual | context | ring | new
        value = torch.cat([value, torch.randn(kv_heads, 1, width)], 1)
        count = torch.cat([count, torch.ones(kv_heads, 1)], 1)
        score = torch.cat([score, torch.zeros(kv_heads, 1)], 1)
        logits = query @ key.transpose(1, 2) / width**0.5 + alpha * count.log()[:, None]
        weights = logits.softmax(-1)
        weights @ value
        score = decay * score + weights.sum(1)
        least = score[:, 1:context + 2].argmin(1) + 1
        pick = least[:, None, None].expand(-1, 1, width)
        merged = count[:, :1, None]
        key[:, :1] = (merged * key[:, :1] + key.gather(1, pick)) / (merged + 1)
        value[:, :1] = (merged * value[:, :1] + value.gather(1, pick)) / (merged + 1)
        count[:, 0] += 1
        stays = torch.ones(kv_heads, budget + 1, dtype=torch.bool).scatter_(1, least[:, None], False)
        key, value = key[stays].view(kv_heads, budget, width), value[stays].view(kv_heads, budget, width)
        score, count = score[stays].view(kv_heads, budget), count[stays].view(kv_heads, budget)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[steps // 5:])


def main():
    arguments = parse_arguments()
    command = [arguments.bench, arguments.model, arguments.policy, arguments.tokens, arguments.rounds]
    output = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout
    dense, short, long = json.loads(output)
    for case in (dense, short, long):
        print(f"{case['policy'].split(':')[0]:<12} {case['tokens']:>6} tokens  {case['step_ms']:8.2f} ms a step  "
              f"{case['attention_us_per_layer']:8.1f} us attention a layer  {case['kv_bytes']:>11} KV bytes")
    print(f"long over short {long['step_ms'] / short['step_ms']:.3f}, dense over policy "
          f"{dense['step_ms'] / long['step_ms']:.2f}")
    if arguments.peer:
        config = json.loads((arguments.model / "config.json").read_text())
        budget = int(arguments.policy.split("budget=")[1].split(",")[0])
        peer = 1e6 * peer_seconds(config, budget, 100)
        print(f"peer, one layer {peer:.1f} us, {peer / long['attention_us_per_layer']:.1f} times as long")
    return 0


if __name__ == "__main__":
    sys.exit(main())
