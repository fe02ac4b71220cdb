#!/usr/bin/env python3
"""Writes tests/data/tokenizer/sentencepiece_*: small trained models, and texts with the ids that transformers' Python
tokenizers of version 4 give. Run in an environment of its own:

    pip install transformers==4.57.6 sentencepiece==0.2.3
    python tests/generators/make_sentencepiece_golden.py
"""
import tempfile
from pathlib import Path

import sentencepiece_cases
import tokenizer_cases as cases
from make_tokenizer_golden import OUTPUT, write_lines

COMMITTED = ["sentencepiece_llama", "sentencepiece_legacy", "sentencepiece_added", "sentencepiece_old_files", "sentencepiece_gemma",
             "sentencepiece_nfkc", "sentencepiece_unigram"]


def answers(library, texts, id_lists):
    for text in texts:
        ids = library.encode(text)
        yield {"text": text, "ids": ids, "decoded": sentencepiece_cases.decode(library, ids, True)}
    for ids in id_lists:
        yield {"ids": ids, "decoded": sentencepiece_cases.decode(library, ids, True),
               "all": sentencepiece_cases.decode(library, ids, False)}


def main():
    with tempfile.TemporaryDirectory() as models:
        for name in COMMITTED:
            rng = cases.generator(7)
            directory = OUTPUT / name
            sentencepiece_cases.write_directory(name, Path(models), directory)
            library = sentencepiece_cases.load(directory)
            texts = cases.NASTY + sentencepiece_cases.OVERLAPS + [text[:80] for text in cases.random_texts(rng, 40)]
            id_lists = list(cases.random_ids(rng, library.sp_model.get_piece_size(), 30))
            write_lines(OUTPUT / f"{name}.json", "[", answers(library, texts, id_lists), "]")


if __name__ == "__main__":
    main()
