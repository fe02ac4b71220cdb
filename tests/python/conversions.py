"""What the tests against transformers share: running the programs, and converted checkpoints."""

import atexit
import functools
import gc
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import torch
import transformers
from safetensors.torch import load_file

BIN = pathlib.Path(os.environ["KVC_BIN_DIR"])
DATA = pathlib.Path(os.environ["KVC_TEST_DATA"])
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
METHODS = {
    "commonkv": ("--method", "commonkv", "--group", 2, "--rank", 0.7, "--window", 16),
    "palu": ("--method", "palu", "--rank", 0.6),
}

gc.freeze()  # what torch and transformers have made stays, and collections need not look at it
torch.set_num_threads(2)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
directory = pathlib.Path(tempfile.mkdtemp(prefix="kvc-python-"))
atexit.register(shutil.rmtree, directory)


def run(program, *arguments, expect=0):
    """stdout and stderr of a program that must end with the exit code `expect`."""
    command = [str(BIN / program), *map(str, arguments), "--quiet"]
    process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    if process.returncode != expect:
        raise AssertionError(f"{' '.join(command)}: exit code {process.returncode}, expected {expect}\n{process.stderr}")
    return process


def tiny_checkpoint(family):
    """A random model of `family` whose biases and norms are random too, with stories260K's tokenizer."""
    target = directory / f"tiny-{family}"
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family, vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, initializer_range=0.2, bos_token_id=1,
        eos_token_id=2, pad_token_id=None, use_sliding_window=False, sliding_window=None, attention_bias=False)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(target)
    shutil.copy(DATA / "stories260K-hf" / "tokenizer.json", target)
    return target


@functools.cache
def source(name):
    return tiny_checkpoint(name) if name in FAMILIES else DATA / name


@functools.cache
def converted(name, method):
    """A directory with out/folded, out/factored and work/, the stages' artifacts."""
    target = directory / f"{name}-{method}"
    target.mkdir()
    run("kvconvert", source(name), "--out", target / "out", "--work", target / "work", "--export", "both",
        "--factor-dtype", "float32",
        *METHODS[method], "--kept-ratio", 0.8, "--num-sequences", 4, "--seq-len", 64, "--no-validate",
        "--calibration", DATA / "texts" / "tinystories_calibration.txt")
    return target


def load(path):
    """The model in float32, and what transformers says about its loading."""
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True,
                                                             attn_implementation="eager")


def random_ids(model, num_sequences, length):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, model.config.vocab_size, (num_sequences, length), generator=generator)


def kvrun_logits(path, ids):
    """[num_sequences, length, vocab_size], as kvrun computes them."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "ids.json").write_text(json.dumps(ids.tolist()), encoding="utf-8")
        run("kvrun", path, "--ids", scratch / "ids.json", "--logits", scratch / "logits.safetensors", "--dtype", "float32",
            "--max-new-tokens", 0)
        logits = load_file(scratch / "logits.safetensors")
    return torch.stack([logits[f"logits.{i}"] for i in range(len(ids))])
