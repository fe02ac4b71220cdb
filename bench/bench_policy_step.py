#!/usr/bin/env python3
"""What a step of generation costs under a token policy: after a long text, after a short one, and with all tokens.

bench_policy_step.py MODEL [--policy zeromerge:budget=1638] [--tokens 32000] [--rounds 20] [--peer] [--released FILE]

All three take turns in one process (tests/bench/policy_step_bench.cpp). Peers (need torch) run one layer's attention, scores,
selection and merge at the shapes of MODEL, without RoPE. --peer: the same policy in vectorised Python, in float32, all KV
heads at once, no key or value repeated for its query heads, tensors joined and selected anew in every step. --released:
the paper's own code, mergekv/mergekv.py of a checkout of SusCom-Lab/ZeroMerge, in float32 and in bfloat16; it repeats
keys and values for every query head.

A model of 0.5B's shape: make_random_checkpoint.py OUT --layers 24 --hidden 896 --intermediate 4864 --heads 14
--kv-heads 2 --vocab 151936 --max-position 40000 --shards 1
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
import types
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
    parser.add_argument("--released", type=Path, help="mergekv.py of the released code")
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
        new_key, new_value = torch.randn(kv_heads, 1, width), torch.randn(kv_heads, 1, width)
        start = time.perf_counter()
        key = torch.cat([key, new_key], 1)  # residual | context | ring | new
        value = torch.cat([value, new_value], 1)
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


def load_released(path):
    """The released module; what it would patch in a transformers of another version is stood in for."""
    import transformers.models.falcon.modeling_falcon as falcon
    import transformers.models.llama.modeling_llama as llama
    import transformers.models.mistral.modeling_mistral as mistral

    for module, name in ((llama, "LlamaSdpaAttention"), (mistral, "MistralSdpaAttention"), (falcon, "FalconAttention")):
        if not hasattr(module, name):
            setattr(module, name, type(name, (), {"forward": None}))
    sys.modules.setdefault("dotenv", types.SimpleNamespace(load_dotenv=lambda: None))
    spec = importlib.util.spec_from_file_location("released_zeromerge", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def released_seconds(code, config, budget, steps, dtype):
    """Median seconds of one layer's step as its forward pass takes them from rotated queries and keys on."""
    import torch

    heads, kv_heads, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    repeats = heads // kv_heads
    settings = {"cache_budget": budget, "cache_tail": int(0.4 * budget), "cache_dense": 1, "metric": "dot_product",
                "score_update": "max", "scale_factor": 0.6, "shrink_factor": 0.98}
    cache = types.SimpleNamespace(key_cache=[], value_cache=[], _seen_tokens=0)

    def random(*shape):
        return torch.randn(1, *shape, dtype=dtype)

    code.cache_update(cache, random(kv_heads, budget, width), random(kv_heads, budget, width), 0, init_f=True,
                      scores=random(kv_heads, budget).abs(), **settings)
    seconds = []
    for _ in range(steps):
        query, key, value = random(heads, 1, width), random(kv_heads, 1, width), random(kv_heads, 1, width)
        start = time.perf_counter()
        keys = code.repeat_kv(torch.concat([cache.key_cache[0], key], dim=-2), repeats)
        values = code.repeat_kv(torch.concat([cache.value_cache[0], value], dim=-2), repeats)
        weights = code.repeat_kv(torch.concat([cache.pos_weight[0], torch.ones_like(key[..., 0])], dim=-1), repeats)
        _, scores = code.score_scaled_dot_product_attention(query, keys, values, attn_mask=None, pos_weight=weights,
                                                            scale_factor=0.6, shrink_factor=0.98)
        code.cache_update(cache, key, value, 0, init_f=False, scores=code.de_repeat_kv(scores, repeats), **settings)
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
    peers = {}
    config = json.loads((arguments.model / "config.json").read_text())
    if arguments.peer or arguments.released:
        import torch

        budget = int(arguments.policy.split("budget=")[1].split(",")[0])
        with torch.inference_mode():
            if arguments.peer:
                peers["vectorised Python, float32"] = peer_seconds(config, budget, 100)
            if arguments.released:
                code = load_released(arguments.released)
                for dtype in (torch.float32, torch.bfloat16):
                    peers[f"released code, {str(dtype)[6:]}"] = released_seconds(code, config, budget, 100, dtype)
    for name, seconds in peers.items():
        print(f"{name}: one layer {1e6 * seconds:.1f} us, "
              f"{1e6 * seconds / long['attention_us_per_layer']:.1f} times as long")
    return 0


if __name__ == "__main__":
    sys.exit(main())
