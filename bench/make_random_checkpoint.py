#!/usr/bin/env python3
"""Writes a llama checkpoint of any size with random weights, for measuring; the default has the shape of an 8B.

make_random_checkpoint.py OUT [--layers 32 --hidden 4096 --intermediate 14336 --heads 32 --kv-heads 8 --shards 4]

Embeddings and attention projections hold random numbers of a standard deviation near 0.02; the rest (the MLP) is
zero and lies in holes of the file, so that the default takes 2.8 GB of disk for 14 GB of weights. The tokenizer is
that of tests/data/stories260K-hf, whose 512 tokens bound the vocabulary from below; embeddings of others are zero,
so that greedy generation stays among those. Needs no library.
"""

import argparse
import json
import pathlib
import random
import shutil
import struct
import sys

TOKENIZER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "stories260K-hf"
TOKENIZER_SIZE = 512
CHUNK_VALUES = 1 << 22
# High bytes of bfloat16 numbers: sign, then exponents 2^-9..2^-8 (a quarter) or 2^-7..2^-6; low bytes are uniform.
HIGH_BYTES = bytes((value & 0x80) | (0x3B if value & 0x60 == 0 else 0x3C) for value in range(256))
ONE = struct.pack("<H", 0x3F80)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    for name, default in (("layers", 32), ("hidden", 4096), ("intermediate", 14336), ("heads", 32), ("kv-heads", 8),
                          ("vocab", 512), ("max-position", 8192), ("shards", 4), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def config_of(options):
    return {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
        "head_dim": options.hidden // options.heads, "hidden_act": "silu", "hidden_size": options.hidden,
        "intermediate_size": options.intermediate, "max_position_embeddings": options.max_position,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": options.heads,
        "num_hidden_layers": options.layers, "num_key_value_heads": options.kv_heads, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "vocab_size": options.vocab,
    }


def tensor_table(options):
    """{name: (shape, fill)} with fill one of random, ones, zeros, tokens (random where the tokenizer has a token)."""
    hidden, intermediate = options.hidden, options.intermediate
    kv_dim = options.kv_heads * (hidden // options.heads)
    table = {"model.embed_tokens.weight": ([options.vocab, hidden], "tokens"), "model.norm.weight": ([hidden], "ones")}
    for layer in range(options.layers):
        prefix = f"model.layers.{layer}."
        for name, shape, fill in (
                ("input_layernorm", [hidden], "ones"), ("post_attention_layernorm", [hidden], "ones"),
                ("self_attn.q_proj", [hidden, hidden], "random"), ("self_attn.k_proj", [kv_dim, hidden], "random"),
                ("self_attn.v_proj", [kv_dim, hidden], "random"), ("self_attn.o_proj", [hidden, hidden], "random"),
                ("mlp.gate_proj", [intermediate, hidden], "zeros"), ("mlp.up_proj", [intermediate, hidden], "zeros"),
                ("mlp.down_proj", [hidden, intermediate], "zeros")):
            table[f"{prefix}{name}.weight"] = (shape, fill)
    return table


def num_values(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def write_values(file, count, fill, generator):
    if fill == "zeros":
        file.seek(2 * count, 1)
    elif fill == "ones":
        file.write(ONE * count)
    else:
        while count > 0:
            values = min(count, CHUNK_VALUES)
            chunk = bytearray(2 * values)
            chunk[0::2] = generator.randbytes(values)
            chunk[1::2] = generator.randbytes(values).translate(HIGH_BYTES)
            file.write(chunk)
            count -= values


def write_safetensors(path, tensors, seed):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, _) in tensors.items():
        size = 2 * num_values(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, (shape, fill) in tensors.items():
            count = num_values(shape)
            known = TOKENIZER_SIZE * shape[1] if fill == "tokens" else 0
            write_values(file, known or count, "random" if known else fill, random.Random(f"{seed} {name}"))
            write_values(file, count - (known or count), "zeros", None)
        file.truncate(8 + len(text) + offset)


def write_shards(out, table, options):
    """Layers are spread over the shards in order, as published checkpoints do it."""
    names = sorted(table, key=lambda name: [int(part) if part.isdigit() else -1 for part in name.split(".")])
    per_shard = -(-len(names) // options.shards)
    weight_map = {}
    for shard in range(options.shards):
        file_name = f"model-{shard + 1:05d}-of-{options.shards:05d}.safetensors"
        tensors = {name: table[name] for name in sorted(names[shard * per_shard:(shard + 1) * per_shard])}
        write_safetensors(out / file_name, tensors, options.seed)
        weight_map.update(dict.fromkeys(tensors, file_name))
        print(f"{file_name}: {len(tensors)} tensors", file=sys.stderr)
    total = sum(2 * num_values(shape) for shape, _ in table.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def main():
    options = parse_arguments()
    if options.hidden % options.heads or options.heads % options.kv_heads:
        sys.exit("--hidden must be a multiple of --heads, and --heads of --kv-heads")
    options.out.mkdir(parents=True)
    (options.out / "config.json").write_text(json.dumps(config_of(options), indent=2) + "\n", encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, options.out / name)
    table = tensor_table(options)
    if options.shards == 1:
        write_safetensors(options.out / "model.safetensors", dict(sorted(table.items())), options.seed)
    else:
        write_shards(options.out, table, options)


if __name__ == "__main__":
    main()
