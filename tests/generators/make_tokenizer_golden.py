#!/usr/bin/env python3
"""Writes tests/data/tokenizer/*.json: texts and ids as the tokenizers library encodes and decodes them, for the two
real tokenizers, for small ones that turn on what those leave off (made here too) and for the families of
tests/generators/make_tokenizers.py.

    .venv/bin/python tests/generators/make_tokenizer_golden.py
"""
import json

from tokenizers import Tokenizer

import tokenizer_cases as cases

OUTPUT = cases.DATA / "tokenizer"
NUM_TEXTS, NUM_ID_LISTS = 300, 40
VARIANTS = ["byte_level_prefix", "byte_level_no_regex", "byte_level_whole_words", "byte_level_legacy", "byte_level_plain",
            "metaspace_added", "metaspace_fused_unknown", "metaspace_single_unknown", "metaspace_dropped_unknown",
            "metaspace_some_bytes", "metaspace_whole_words", "metaspace_bytes", "metaspace_forms"]


def write_lines(path, opening, lines, closing):
    dumped = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    path.write_text(f"{opening}\n{dumped}\n{closing}\n", encoding="ascii")


def answers(library, texts, id_lists):
    for text in texts:
        ids = library.encode(text).ids
        yield {"text": text, "ids": ids, "decoded": library.decode(ids)}
    for ids in id_lists:
        yield {"ids": ids, "decoded": library.decode(ids), "all": library.decode(ids, skip_special_tokens=False)}


def write_golden(name, directory, num_texts):
    rng = cases.generator(7)
    library = Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = cases.NASTY + [text[:80] for text in cases.random_texts(rng, num_texts - len(cases.NASTY))]
    id_lists = list(cases.random_ids(rng, library.get_vocab_size(), NUM_ID_LISTS))
    write_lines(OUTPUT / f"{name}.json", "[", answers(library, texts, id_lists), "]")


def main():
    for name in ("reference-llama", "stories260K-hf"):
        write_golden(name, cases.directory(name), NUM_TEXTS)
    definitions = cases.variants(small=True)
    for name in VARIANTS:
        directory = OUTPUT / name
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(definitions[name], separators=(",", ":"))
        (directory / "tokenizer.json").write_text(text + "\n", encoding="ascii")
        write_golden(name, directory, len(cases.NASTY) + 40)
    for name in cases.FAMILIES:
        write_golden(name, OUTPUT / name, len(cases.NASTY) + 20)


if __name__ == "__main__":
    main()
