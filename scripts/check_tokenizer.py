#!/usr/bin/env python3
"""Compares the native tokenizer with the tokenizers library: ids of texts and what ids decode to.

Per kind of tokenizer: natural, random and nasty texts, every Unicode scalar value alone and between letters,
digits, spaces and added tokens, and random ids.

    .venv/bin/python scripts/check_tokenizer.py build/cpu/tests/tokenize_lines [--count 100000] [--only NAME] [--quick]
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


def compare(program, name, definition, count, step):
    """Number of differences; every step-th scalar value takes part."""
    rng = cases.generator(1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tokenizer.json"
        path.write_text(json.dumps(definition), encoding="utf-8")
        library = Tokenizer.from_file(str(path))

        def items():
            yield from cases.NASTY
            yield from cases.random_texts(rng, count)
            yield from cases.texts_with_every_scalar(100, step)
            if step == 1:
                yield from map(chr, cases.every_scalar())
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
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--quick", action="store_true", help="2000 texts and every 97th scalar value")
    options = parser.parse_args()
    count, step = (2000, 97) if options.quick else (options.count, 1)
    chosen = {name: value for name, value in {**cases.families(), **cases.variants()}.items() if options.only in name}
    differences = sum(compare(options.program, name, value, count, step) for name, value in chosen.items())
    print(f"{len(chosen)} kinds, {differences} differences")
    sys.exit(1 if differences or not chosen else 0)


if __name__ == "__main__":
    main()
