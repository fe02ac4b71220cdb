#!/usr/bin/env python3
"""Compares the native tokenizer with the tokenizers library, text by text.

    .venv/bin/python scripts/check_tokenizer.py build/cpu/tests/tokenize_lines [--count 100000] [--only NAME]
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

import tokenizer_cases as cases

BATCH = 20_000


def native(program, directory, items):
    lines = "".join(json.dumps(item) + "\n" for item in items)
    result = subprocess.run([program, directory], input=lines, capture_output=True, encoding="utf-8", check=False)
    if result.returncode != 0:
        sys.exit(f"{program}: {result.stderr}")
    return [json.loads(line) for line in result.stdout.split("\n")[:-1]]


def expected(library, items):
    texts = [item for item in items if isinstance(item, str)]
    encodings = iter(library.encode_batch(texts))
    for item in items:
        if isinstance(item, str):
            ids = next(encodings).ids
            yield {"ids": ids, "text": library.decode(ids)}
        else:
            yield {"text": library.decode(item), "all": library.decode(item, skip_special_tokens=False)}


def batches(items):
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            yield batch
            batch = []
    yield batch


def compare(program, name, definition, count):
    rng = cases.generator(1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tokenizer.json"
        path.write_text(json.dumps(definition), encoding="utf-8")
        library = Tokenizer.from_file(str(path))

        def items():
            yield from cases.NASTY
            yield from cases.random_texts(rng, count)
            yield from cases.texts_with_every_scalar(1 if name in ("byte_level", "metaspace") else 100)
            yield from cases.random_ids(rng, library.get_vocab_size(), count // 5)

        checked = differences = 0
        for batch in batches(items()):
            for item, found, wanted in zip(batch, native(program, directory, batch), expected(library, batch), strict=True):
                checked += 1
                if found != wanted:
                    differences += 1
                    if differences <= 5:
                        print(f"{name}: {item!r}\n  native  {found}\n  library {wanted}")
        print(f"{name}: {checked} compared, {differences} differ", flush=True)
        return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    chosen = {name: value for name, value in cases.variants().items() if options.only in name}
    differences = sum(compare(options.program, name, value, options.count) for name, value in chosen.items())
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
