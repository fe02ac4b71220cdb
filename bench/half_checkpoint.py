"""Checkpoints in 16 bits, so that kept_ratio compares with a 16-bit cache."""

import json
import shutil
import struct


def halved(path, out):
    """Writes a safetensors file with its float32 tensors in float16."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header, parts, offset = json.loads(data[8:start]), [], 0
    for tensor in sorted((t for name, t in header.items() if name != "__metadata__"), key=lambda t: t["data_offsets"]):
        first, last = tensor["data_offsets"]
        part = data[start + first:start + last]
        if tensor["dtype"] == "F32":
            count = len(part) // 4
            part = struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", part))
            tensor["dtype"] = "F16"
        parts.append(part)
        tensor["data_offsets"] = [offset, offset + len(part)]
        offset += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def in_16_bits(checkpoint, directory):
    """The checkpoint, or a float32 one in float16."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    name = "torch_dtype" if "torch_dtype" in config else "dtype"
    if config.get(name) != "float32":
        return checkpoint
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for file in checkpoint.iterdir():
        if file.name == "config.json":
            (directory / file.name).write_text(json.dumps({**config, name: "float16"}, indent=2) + "\n", encoding="utf-8")
        elif file.suffix == ".safetensors":
            halved(file, directory / file.name)
        elif file.is_file():
            shutil.copy(file, directory / file.name)
    return directory
