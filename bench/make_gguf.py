#!/usr/bin/env python3
"""Writes a llama checkpoint (tied or not, no biases) as a GGUF file without a tokenizer, for llama.cpp.

make_gguf.py MODEL OUT.gguf [--type f32|bf16|q8_0]

Norms are float32; every matrix is of the type. Needs the packages gguf and numpy.
"""

import argparse
import json
import struct
import sys
from pathlib import Path

import gguf
import numpy

NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
TYPES = {"f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
         "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
         "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0)}


def read_tensors(directory):
    """(name, float32 array) of every tensor, which is bfloat16 or float32."""
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
        data = numpy.memmap(path, numpy.uint8, "r", offset=8 + size)
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            stored = data[slice(*entry["data_offsets"])]
            if entry["dtype"] == "BF16":
                values = (stored.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
            elif entry["dtype"] == "F32":
                values = stored.view(numpy.float32)
            else:
                sys.exit(f"{path}: {name} is {entry['dtype']}, expected BF16 or F32")
            yield name, values.reshape(entry["shape"])


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem in OTHERS:
        return OTHERS[stem] + ".weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def rope_theta(config, path):
    """The base of a RoPE without scaling; any other is refused."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        sys.exit(f"{path}: RoPE of type {kind}, expected default")
    return rope.get("rope_theta", config.get("rope_theta", 10000.0))


def pairs_side_by_side(weight, heads):
    """Rotary pairs (i, i + head_dim / 2) of every head become (2i, 2i + 1), as llama.cpp turns them."""
    out, width = weight.shape
    return weight.reshape(heads, 2, out // heads // 2, width).swapaxes(1, 2).reshape(out, width)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="bf16")
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text())
    kind, file_type = TYPES[arguments.type]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(arguments.out, "llama")
    writer.add_file_type(file_type)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(rope_theta(config, arguments.model / "config.json"))
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, weight in read_tensors(arguments.model):
        if weight.ndim == 1:
            writer.add_tensor(gguf_name(name), weight)
            continue
        for part, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if part in name:
                weight = pairs_side_by_side(weight, count)
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
