#!/usr/bin/env python3
"""Writes tests/data/zoo: a tiny random checkpoint of every supported architecture, with what transformers computes.

make_zoo.py [CASE...]      all cases of tests/generators/zoo_cases.py, or those named

zoo/<case>/ is a checkpoint; zoo/<case>.safetensors has, for two prompts of different lengths, ids.<i>, logits.<i>
[num_tokens, vocab_size] and tokens.<i>, the 24 ids that follow greedily; by_length is 1 where RoPE depends on the
longest sequence of a call, so that a batch or a prompt in pieces may differ. zoo/tokenizer.json serves all of them.
Attention is transformers' eager one, in float32, whatever the weights are stored as.

Seeds are tried until a case says something: attention is far from uniform, no choice of a token or of an expert is
near a tie, batch and single sequences, with and without a cache, give the same tokens, and switching any feature off
changes the logits. Run from anywhere, with transformers installed; the result is deterministic.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

from zoo_cases import CASES, SIZES
from zoo_checks import NotTelling, check_case

ZOO = pathlib.Path(__file__).resolve().parents[1] / "data" / "zoo"
LENGTHS = (29, 17)
MAX_SEEDS = 60
V4_LAYER_TYPES = ("qwen2", "qwen3", "gemma2", "gemma3_text", "mistral", "smollm3")  # written by transformers 5 only


def randomize(model):
    """Weights with which everything matters: peaked attention, norms away from 1, biases away from 0."""
    offset = 1.0 if model.config.model_type.startswith("gemma") else 0.0  # what a norm adds to its weight
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        if "norm" in name and name.endswith("weight"):
            value = 1.0 + (0.5 if "q_norm" in name or "k_norm" in name else 0.0) + 0.3 * noise
            if name.endswith("model.norm.weight"):  # a tied output matrix would repeat the last token
                value *= torch.randn(parameter.shape).sign()
            value -= offset
        elif name.endswith("bias"):
            value = 0.5 * noise
        elif "embed" in name:
            value = noise
        else:
            value = noise * gain(name) / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value)


def gain(name):
    if "q_proj" in name or "k_proj" in name or "q_b_proj" in name or "kv_b_proj" in name or "qkv_proj" in name:
        return 1.6
    return 2.0 if ".gate.weight" in name else 1.0


def new_model(case, seed):
    torch.manual_seed(seed)
    settings = case.settings if "text_config" in case.settings else SIZES | case.settings
    config = transformers.AutoConfig.for_model(case.model_type, **json.loads(json.dumps(settings)))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    return model.to(getattr(torch, case.dtype))


def to_v4(config):
    """config.json as transformers 4 spelled it."""
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.3"
    parameters = config.pop("rope_parameters")
    if config["model_type"] == "gemma3_text":
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = 3  # the same layers as layer_types for four of them
        config.pop("_sliding_window_pattern", None)
    parameters = parameters.get("full_attention", parameters)
    config["rope_theta"] = parameters.pop("rope_theta")
    if "partial_rotary_factor" in parameters:
        config["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    kind = parameters.pop("rope_type", "default")
    key = "type" if kind in ("linear", "dynamic", "longrope") or config["model_type"] == "deepseek_v2" else "rope_type"
    config["rope_scaling"] = None if kind == "default" else {key: kind, **parameters}
    if config["model_type"] in V4_LAYER_TYPES:
        config.pop("layer_types", None)
    return config


def edit_config(directory, case):
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("transformers_version", None)
    if case.spelling == "v4":
        config = to_v4(config)
    for key in case.drop:
        del config[key]
    for key, other in case.renamed.items():
        if key == "model_type":
            config[key] = other
        elif key in config:
            config[other] = config.pop(key)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def edit_tensors(directory, case):
    path = directory / "model.safetensors"
    if not case.prefix and not case.twice:
        return
    tensors = load_file(path)
    if case.prefix:
        saved, stored = case.prefix
        tensors = {stored + name.removeprefix(saved) if name.startswith(saved) else name: value
                   for name, value in tensors.items()}
    if case.twice:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})


def load(directory, **options):
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **options)
    assert not loading["missing_keys"] and not loading["mismatched_keys"], loading
    return model.eval()


def write_checkpoint(directory, case, seed):
    shutil.rmtree(directory, ignore_errors=True)
    new_model(case, seed).save_pretrained(directory, max_shard_size=case.shard_size,
                                          save_original_format=not case.stacked)
    (directory / "generation_config.json").unlink(missing_ok=True)
    edit_tensors(directory, case)
    edit_config(directory, case)


def golden(model, case):
    """Tensors of the golden file, or NotTelling."""
    prompts = [torch.randint(3, SIZES["vocab_size"], (1, length)) for length in LENGTHS]
    tensors = {"by_length": torch.tensor([int(case.by_length)])}
    for i, (ids, (logits, tokens)) in enumerate(zip(prompts, check_case(model, case, prompts))):
        tensors |= {f"ids.{i}": ids[0], f"logits.{i}": logits.contiguous(), f"tokens.{i}": tokens}
    return tensors


def write_case(name):
    case, directory = CASES[name], ZOO / name
    for seed in range(MAX_SEEDS):
        write_checkpoint(directory, case, seed)
        try:
            save_file(golden(load(directory), case), ZOO / f"{name}.safetensors")
        except NotTelling as reason:
            print(f"{name}: seed {seed}: {reason}", file=sys.stderr)
            continue
        size = sum(path.stat().st_size for path in directory.iterdir())
        print(f"{name}: seed {seed}, {size / 1024:.0f} KiB")
        return
    sys.exit(f"{name}: no seed below {MAX_SEEDS} makes a case that says something")


def write_tokenizer():
    """One token per printable ASCII character, then filler: enough for text of any kind."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "\n": 3} | {chr(code): code - 28 for code in range(32, 127)}
    vocab |= {f"<extra_{i}>": i for i in range(len(vocab), SIZES["vocab_size"])}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for text, i in list(vocab.items())[:3]],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": []},
    }
    (ZOO / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1) + "\n", encoding="utf-8")


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    ZOO.mkdir(parents=True, exist_ok=True)
    write_tokenizer()
    for name in sys.argv[1:] or CASES:
        write_case(name)


if __name__ == "__main__":
    main()
