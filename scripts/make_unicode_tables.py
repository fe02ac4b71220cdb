#!/usr/bin/env python3
"""Writes model/tokenizer/unicode_ranges.h: the code point classes that tokenizers needs.

The classes are probed from the tokenizers wheel itself, over every Unicode scalar value, so that they
are the ones of the Unicode version that it bundles.

    .venv/bin/python scripts/make_unicode_tables.py model/tokenizer/unicode_ranges.h
"""
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers

SCALARS = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
CHUNK = 4096


def matching(pattern):
    """Code points that a regular expression removes when it is replaced by nothing."""
    remove = normalizers.Replace(Regex(pattern), "")
    found = []
    for start in range(0, len(SCALARS), CHUNK):
        chunk = SCALARS[start : start + CHUNK]
        kept = set(remove.normalize_str("".join(map(chr, chunk))))
        found += [code for code in chunk if chr(code) not in kept]
    return found


def word_characters():
    """Code points before which an added token with single_word does not match."""
    tokenizer = Tokenizer(models.BPE(vocab={"?": 0}, merges=[], unk_token="?"))
    tokenizer.add_tokens([AddedToken("<token>", single_word=True, normalized=False)])
    added = tokenizer.token_to_id("<token>")
    found = []
    for start in range(0, len(SCALARS), CHUNK):
        chunk = SCALARS[start : start + CHUNK]
        encodings = tokenizer.encode_batch([chr(code) + "<token>" for code in chunk])
        found += [code for code, encoding in zip(chunk, encodings) if added not in encoding.ids]
    return found


def ranges(codes):
    result = []
    for code in codes:
        if result and result[-1][1] == code - 1:
            result[-1][1] = code
        else:
            result.append([code, code])
    return result


def table(name, comment, codes):
    rows = ranges(codes)
    cells = [f"{{0x{first:X}, 0x{last:X}}}" for first, last in rows]
    lines = ["    " + ", ".join(cells[i : i + 4]) + "," for i in range(0, len(cells), 4)]
    return "\n".join([f"// {comment}", f"inline constexpr CodePointRange {name}[] = {{", *lines, "};"])


def main():
    parts = [
        "// Made by scripts/make_unicode_tables.py from tokenizers " + tokenizers.__version__
        + "; not to be edited.\n// clang-format off\n#pragma once\n\nnamespace kvc {\n\n"
        "// First and last code point; tables are sorted and their ranges do not touch.\n"
        "struct CodePointRange {\n  char32_t first, last;\n};",
        table("kLetterRanges", r"\p{L} of its Oniguruma.", matching(r"\p{L}")),
        table("kNumberRanges", r"\p{N} of its Oniguruma.", matching(r"\p{N}")),
        table("kWhiteSpaceRanges", r"\s of its Oniguruma.", matching(r"\s")),
        table("kWordRanges", r"\w of its Rust regex.", word_characters()),
        "}  // namespace kvc",
    ]
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
