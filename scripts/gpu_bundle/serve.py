#!/usr/bin/env python3
"""A converted checkpoint in transformers, on a device beside the CPU: logits of one text, bytes of its cache, and times.

    serve.py PACKAGES LIBRARY CONVERTED DEVICE [--original DIR]

PACKAGES: the directory of the package kvconvert. LIBRARY: libkvconvert_ops.so. --original: measures on DEVICE the checkpoint as it was,
beside. Prints one JSON object.
"""

import argparse
import json
import os
import statistics
import sys
import time

# Largest differences of logits in bfloat16, each behind codes of other roundings.
MEAN_TOLERANCE, MOST_TOLERANCE = 0.05, 1.0
PARTS = (40, 41, 75, 76, 77)  # the text is read in these parts: prompts, and single tokens
PROMPT, STEPS = 1024, 32


def logits_of(model, cache, tokens, mask):
    """Of all parts, on the CPU."""
    found, begin = [], 0
    for end in (*PARTS, tokens.shape[1]):
        out = model(tokens[:, begin:end].to(model.device), attention_mask=mask[:, :end].to(model.device), past_key_values=cache)
        found.append(out.logits.float().cpu())
        begin = end
    return found


def compare(torch, host, own):
    """Two texts, one of which begins with padding, with a cache of the model's kind."""
    random = torch.Generator().manual_seed(3)
    tokens = torch.randint(5, 400, (2, PARTS[-1] + 4), generator=random)
    mask = torch.ones_like(tokens)
    mask[1, :20] = 0
    caches = [model.new_cache() for model in (host, own)]
    expected, found = (logits_of(model, cache, tokens, mask) for model, cache in zip((host, own), caches))
    visible, begin, differences = mask.bool(), 0, []
    for of_host, of_own in zip(expected, found):
        end = begin + of_host.shape[1]
        differences.append((of_own - of_host).abs()[visible[:, begin:end]])
        begin = end
    every = torch.cat([part.flatten() for part in differences])
    return {"mean_logit_difference": every.mean().item(), "max_logit_difference": every.max().item(),
            "cache_bytes_equal": caches[0].nbytes() == caches[1].nbytes()}


def measure(torch, model, DynamicCache):
    """Milliseconds of a prompt and of a step behind it."""
    def wait():
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    def milliseconds(work):
        wait()
        begin = time.perf_counter()
        result = work()
        wait()
        return (time.perf_counter() - begin) * 1e3, result

    length = min(PROMPT, model.config.max_position_embeddings - STEPS)
    tokens = torch.randint(5, 400, (1, length + STEPS), generator=torch.Generator().manual_seed(4)).to(model.device)
    prompts, steps = [], []
    for _ in range(3):
        cache = model.new_cache() if hasattr(model, "new_cache") else DynamicCache(config=model.config)
        elapsed, _ = milliseconds(lambda cache=cache: model(tokens[:, :length], past_key_values=cache, logits_to_keep=1))
        prompts.append(elapsed)
        for i in range(length, length + STEPS):
            elapsed, _ = milliseconds(lambda i=i, cache=cache: model(tokens[:, i:i + 1], past_key_values=cache))
            steps.append(elapsed)
    return {"prompt_tokens": length, "prompt_ms": min(prompts), "step_ms": statistics.median(steps)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages")
    parser.add_argument("library")
    parser.add_argument("converted")
    parser.add_argument("device")
    parser.add_argument("--original")
    options = parser.parse_args()
    os.environ["KVCONVERT_OPS"] = options.library
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path.insert(0, options.packages)
    try:
        import torch
        from transformers import AutoModelForCausalLM, DynamicCache, __version__
    except ImportError as missing:
        print(json.dumps({"skipped": f"{missing}"}))
        return 0
    import kvconvert  # noqa: F401  (makes the Auto classes load converted directories)

    def load(directory, device):
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).to(device)

    torch.set_grad_enabled(False)
    host = load(options.converted, "cpu")
    own = load(options.converted, options.device) if options.device != "cpu" else host
    report = {"transformers": __version__, **compare(torch, host, own)}
    report["passed"] = (report["mean_logit_difference"] <= MEAN_TOLERANCE and report["max_logit_difference"] <= MOST_TOLERANCE
                        and report["cache_bytes_equal"])
    if options.original:
        report["coded"] = measure(torch, own, DynamicCache)
        report["original"] = measure(torch, load(options.original, options.device), DynamicCache)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
