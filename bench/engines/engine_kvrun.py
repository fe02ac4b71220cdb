"""kvrun, the project's own engine: what the others are compared with."""

import json
import pathlib
import subprocess
import tempfile

from kvconvert_programs import environment, path_of
from safetensors.numpy import load_file

from model import GIB, Model


def _run(checkpoint, folder, ids, *options):
    """What `kvrun --json` prints for these ids."""
    prompt = folder / "ids.json"
    prompt.write_text(json.dumps(ids), encoding="utf-8")
    command = [path_of("kvrun"), checkpoint, "--ids", prompt, "--json", "--quiet", *options]
    process = subprocess.run(list(map(str, command)), env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr.strip())
    return json.loads(process.stdout)


class Kvrun(Model):
    def __init__(self, checkpoint, scratch):
        self._checkpoint, self._scratch = checkpoint, scratch

    def logits(self, ids):
        path = self._scratch / "logits.safetensors"
        _run(self._checkpoint, self._scratch, ids, "--dtype", "float32", "--max-new-tokens", 0, "--logits", path, "--force")
        return load_file(path)["logits"]

    def greedy(self, ids, count):
        return _run(self._checkpoint, self._scratch, ids, "--dtype", "float32", "--max-new-tokens", count)["tokens"]


def load(checkpoint, scratch):
    return Kvrun(checkpoint, scratch)


def tokens_per_gib(checkpoint, ids):
    with tempfile.TemporaryDirectory() as folder:
        cache = _run(checkpoint, pathlib.Path(folder), ids, "--max-new-tokens", 1)["kv"]
    return cache["tokens"] / cache["bytes"] * GIB
