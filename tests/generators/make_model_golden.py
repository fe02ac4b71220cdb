#!/usr/bin/env python3
"""Writes tests/data/golden: what transformers computes, for the C++ decoder to be compared with.

Tiny random checkpoints of every architecture row with ids and logits, rows of the two real checkpoints'
logits, and RoPE tables. Attention is transformers' eager one; everything is float32 unless its name says
otherwise. Run from the repository root, with transformers installed; the result is deterministic.
"""
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
GOLDEN = DATA / "golden"

SIZES = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=96, max_position_embeddings=128, pad_token_id=None, bos_token_id=1, eos_token_id=2,
)
THETA = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": dict(model_type="llama", rope_parameters=THETA, dtype="float32"),
    "llama_bias_llama3": dict(
        model_type="llama", attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3, tie_word_embeddings=True,
        dtype="bfloat16"),
    "llama_linear": dict(
        model_type="llama", rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
        num_key_value_heads=4, dtype="float16"),
    "mistral_window": dict(
        model_type="mistral", sliding_window=7, head_dim=16, rope_parameters=THETA, dtype="float32"),
    "qwen2": dict(model_type="qwen2", rope_parameters=THETA, dtype="bfloat16"),
    "qwen2_window": dict(
        model_type="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1, num_key_value_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, dtype="bfloat16"),
    "qwen3": dict(
        model_type="qwen3", head_dim=16, tie_word_embeddings=True, rope_parameters=THETA, dtype="bfloat16"),
    "qwen3_bias": dict(
        model_type="qwen3", head_dim=8, attention_bias=True, rope_parameters=THETA, dtype="bfloat16"),
}


def randomize(model):
    """Weights that make attention and MLP matter: matrices keep sizes, norms near 1, biases small."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        if name.endswith("norm.weight"):
            value = 1 + 0.1 * noise
        elif name.endswith(".bias"):
            value = 0.1 * noise
        elif "embed_tokens" in name:
            value = noise
        else:
            value = noise / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value)


def load(directory, dtype):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def logits_of(directory, ids, dtype=torch.float32):
    return load(directory, dtype)(ids, use_cache=False).logits.float()


def write_case(name, settings):
    directory = GOLDEN / name
    settings = {**SIZES, **settings}
    dtype = getattr(torch, settings.pop("dtype"))
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model)
    model.to(dtype).save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    ids = torch.randint(0, config.vocab_size, (2, 24))
    save_file(
        {
            "ids": ids,
            "logits": logits_of(directory, ids),
            "logits_bfloat16": logits_of(directory, ids, torch.bfloat16),
        },
        GOLDEN / f"{name}.safetensors")


def write_real(name, rows):
    """Rows of a real checkpoint's logits over the story that travels with stories260K-hf."""
    directory = DATA / name
    story = (DATA / "stories260K-hf" / "expected_greedy.txt").read_text()
    ids = torch.tensor([AutoTokenizer.from_pretrained(directory)(story)["input_ids"]])[:, :256]
    rows = torch.tensor([row for row in rows if row < ids.shape[1]])
    save_file(
        {
            "ids": ids,
            "rows": rows,
            "logits": logits_of(directory, ids)[0, rows].contiguous(),
            "logits_bfloat16": logits_of(directory, ids, torch.bfloat16)[0, rows].contiguous(),
        },
        GOLDEN / f"{name}.safetensors")


ROPES = {  # parameters of a head of 128 channels and the length of the text, if it counts
    "llama3": ({**LLAMA3, "rope_theta": 500000.0, "original_max_position_embeddings": 8192}, None),
    "linear": ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, None),
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}, 300000),
    "yarn": ({"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768},
             None),
    "yarn_mscale": ({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "mscale": 0.9, "mscale_all_dim": 0.5,
                     "original_max_position_embeddings": 4096, "beta_fast": 16.0, "truncate": False}, None),
    "longrope_short": ("longrope", 4096),
    "longrope_long": ("longrope", 4097),
}


def write_rope():
    """Inverse frequencies and attention factors of every scaled type, and Llama-3.1's cos/sin far out."""
    shape = dict(head_dim=128, hidden_size=4096, num_attention_heads=32, max_position_embeddings=131072)
    longrope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 4096,
                "short_factor": [1 + i / 64 for i in range(64)], "long_factor": [1 + i / 2 for i in range(64)]}
    tensors = {}
    for name, (parameters, length) in ROPES.items():
        parameters = longrope if parameters == "longrope" else parameters
        config = AutoConfig.for_model("llama", rope_parameters=parameters, **shape)
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](
            config, "cpu", seq_len=None if length is None else torch.tensor(length))
        tensors |= {name: frequencies.clone(), f"{name}.attention_factor": torch.tensor(factor, dtype=torch.float64)}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", rope_parameters=ROPES["llama3"][0], num_hidden_layers=1, vocab_size=8,
                             intermediate_size=8, **shape))
    positions = torch.tensor([0, 1, 1000, 8192, 131071])
    cos, sin = model.model.rotary_emb(torch.zeros(1), positions[None])
    tensors.update(positions=positions, cos=cos[0, :, :64].contiguous(), sin=sin[0, :, :64].contiguous())
    save_file(tensors, GOLDEN / "rope.safetensors")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    for name, settings in CASES.items():
        write_case(name, settings)
    write_real("reference-llama", [0, 1, 7, 64, 128, 255])
    write_real("reference-llama-128", [0, 1, 7, 64, 128, 255])
    write_real("stories260K-hf", [0, 1, 7, 64, 128, 255])
    write_rope()


if __name__ == "__main__":
    main()
