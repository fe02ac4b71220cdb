"""Writes tests/data/safetensors: files of the Python safetensors library and an index as transformers writes it."""

import json
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file

DTYPES = [
    "uint64", "int64", "float64", "complex64", "float32", "uint32", "int32", "bfloat16", "float16", "uint16",
    "int16", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu", "float8_e4m3fn", "float8_e5m2", "int8",
    "uint8", "bool",
]


def filled(dtype, shape, seed):
    """Bytes seed, seed + 1, ... (for bool their lowest bit), viewed as dtype."""
    kind = getattr(torch, dtype)
    count = int(torch.tensor(shape).prod()) if shape else 1
    data = torch.arange(seed, seed + count * kind.itemsize, dtype=torch.int64)
    data = (data % 2 if dtype == "bool" else data % 256).to(torch.uint8)
    return data.view(kind).reshape(shape)


def main():
    out = Path(__file__).resolve().parents[1] / "data" / "safetensors"
    tensors = {f"all.{dtype}": filled(dtype, [2, 3], i) for i, dtype in enumerate(DTYPES)}
    tensors["layers.2.weight"] = filled("bfloat16", [3], 100)
    tensors["layers.10.weight"] = filled("bfloat16", [5], 110)
    tensors["scalar"] = filled("float32", [], 120)
    tensors["empty"] = torch.zeros(0, 4)
    tensors['caf\u00e9 "quoted" \\ \U0001f600'] = filled("int8", [1], 130)
    save_file(tensors, out / "all_dtypes.safetensors", metadata={"format": "pt"})
    save_file({}, out / "no_tensors.safetensors", metadata={"format": "pt"})

    state = {name: torch.zeros(size) for name, size in
             [("b", 4), ("a", 8), ("huge", 40), ("c", 9), ("caf\u00e9", 4), ("d", 16), ("last", 1)]}
    split = split_torch_state_dict_into_shards(
        state, max_shard_size=64, filename_pattern="model{suffix}.safetensors")
    index = {"metadata": {"total_parameters": sum(t.numel() for t in state.values()), **split.metadata},
             "weight_map": split.tensor_to_filename}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
