"""Checkpoints and prompts of the vLLM tests."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "tests/data/reference-llama"
TEXTS = ROOT / "tests/data/texts"
BIN = Path(os.environ.get("KVC_BIN", ROOT / "build/cpu/bin"))
LENGTHS = (7, 19, 31, 32, 33, 64, 90, 127, 200, 333, 480, 511)  # tokens of the prompts
SEPARATOR = "<|endoftext|>"


def convert(out: Path, *options: str, source: Path = REFERENCE) -> Path:
    """Converts a checkpoint for serving."""
    command = [BIN / "kvconvert", "--kept-ratio", "0.25", "--for", "vllm", *options, "--no-validate", "--quiet"]
    command += ["--calibration", TEXTS / "tinystories_calibration.txt", "--out", out, source]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return out


def heldout(tokenizer) -> list[int]:
    """Token ids of the held-out stories, one after the other."""
    texts = (TEXTS / "tinystories_heldout.txt").read_text().split(SEPARATOR)
    return [token for text in texts for token in tokenizer.encode(text.strip(), add_special_tokens=False)]


def begun(tokenizer, tokens: list[int]) -> list[int]:
    """As many tokens, of which the first is the one that the tokenizer puts before a text."""
    return [tokenizer.bos_token_id, *tokens[:-1]]


def prompts(tokenizer) -> list[dict]:
    """Twelve prompts of 7 to 511 tokens of the held-out stories."""
    tokens = heldout(tokenizer)
    parts = [begun(tokenizer, tokens[600 * i : 600 * i + length]) for i, length in enumerate(LENGTHS)]
    return [{"prompt_token_ids": part} for part in parts]
