#!/usr/bin/env python3
"""Compares the native tokenizer on sentencepiece models with transformers' Python tokenizers of version 4, text by text.
Run in the environment of tests/generators/make_sentencepiece_golden.py:

    python tests/checks/check_sentencepiece.py build/cpu/tests/tokenize_lines [--count 100000] [--only NAME]
"""
import argparse
import sys
import tempfile
from pathlib import Path

from check_tokenizer import count_differences

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "generators"))
import sentencepiece_cases  # noqa: E402
import tokenizer_cases as cases  # noqa: E402

EVERY_SCALAR = ["sentencepiece_llama", "sentencepiece_gemma", "sentencepiece_symbols", "sentencepiece_nfkc", "sentencepiece_unigram"]


def items(rng, count, vocab_size, every_scalar):
    yield from sentencepiece_cases.texts(rng, count)
    if every_scalar and count >= 50_000:
        yield from cases.texts_with_scalars(cases.every_scalar(), 100)
    yield from cases.random_ids(rng, vocab_size, count // 5)


def expected(library, item):
    if isinstance(item, str):
        ids = library.encode(item)
        return {"ids": ids, "text": sentencepiece_cases.decode(library, ids, True)}
    return {"text": sentencepiece_cases.decode(library, item, True), "all": sentencepiece_cases.decode(library, item, False)}


def compare(program, name, models, count):
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        sentencepiece_cases.write_directory(name, models, directory)
        library = sentencepiece_cases.load(directory)
        # Slow in the library: once per model is enough.
        every_scalar = name in EVERY_SCALAR
        checked, differences = count_differences(
            program, name, directory, items(cases.generator(1), count, library.sp_model.get_piece_size(), every_scalar),
            lambda batch: (expected(library, item) for item in batch))
        print(f"{name}: {checked} compared, {differences} differ", flush=True)
        return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as models:
        chosen = [name for name in sentencepiece_cases.DIRECTORIES if options.only in name]
        differences = sum(compare(options.program, name, Path(models), options.count) for name in chosen)
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
