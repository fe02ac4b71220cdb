#!/usr/bin/env python3
"""Compares the native tokenizer with the tokenizers library: ids of texts and what ids decode to.

Per kind of tokenizer: natural, random and nasty texts, every Unicode scalar value alone (between added tokens) and
beside letters, digits and spaces, and random ids. Variations of single settings see ideographs, private use and
unassigned scalar values in samples.

    .venv/bin/python tests/checks/check_tokenizer.py build/cpu/tests/tokenize_lines [--count 100000] [--only NAMES] [--quick]
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "generators"))
import tokenizer_cases as cases  # noqa: E402

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


def items_of(library, texts, codes):
    yield from texts
    yield from cases.texts_with_scalars(codes, 100)
    yield from cases.texts_of_lone_scalars(codes, 100)
    yield from cases.random_ids(cases.generator(2), library.get_vocab_size(), len(texts) // 5)


def count_differences(program, name, directory, items, expected):
    """How many items were compared, and how many differ from `expected` of their batch; prints the first of these."""
    checked = differences = 0
    for batch in batches(items):
        for item, found, wanted in zip(batch, native(program, directory, batch), expected(batch), strict=True):
            checked += 1
            if found != wanted:
                differences += 1
                if differences <= 5:
                    print(f"{name}: {item!r}\n  native  {found}\n  library {wanted}")
    return checked, differences


def compare(program, name, definition, texts, codes):
    """Number of differences."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tokenizer.json"
        path.write_text(json.dumps(definition), encoding="utf-8")
        library = Tokenizer.from_file(str(path))
        checked, differences = count_differences(
            program, name, directory, items_of(library, texts, codes), lambda batch: expected(library, batch))
        print(f"{name}: {checked} texts and lists of ids, {len(codes)} scalar values compared, {differences} differ", flush=True)
        return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--only", default="", help="kinds, separated by commas")
    parser.add_argument("--quick", action="store_true", help="1000 texts and every 197th scalar value")
    options = parser.parse_args()
    texts = cases.NASTY + list(cases.random_texts(cases.generator(1), 1000 if options.quick else options.count))
    families, variants = cases.families(), cases.variants()
    codes, sampled = cases.every_scalar(), cases.sampled_scalars(31)
    if options.quick:
        codes = sampled = codes[::197]
    differences = count = 0
    for name, definition in {**families, **variants}.items():
        if options.only and name not in options.only.split(","):
            continue
        count += 1
        differences += compare(options.program, name, definition, texts, codes if name in families else sampled)
    print(f"{count} kinds, {differences} differences")
    sys.exit(1 if differences or not count else 0)


if __name__ == "__main__":
    main()
