#!/usr/bin/env python3
"""Writes model/tokenizer/unicode_ranges.h and property_ranges.h: what tokenizers need to know of characters.

Everything is probed from the tokenizers wheel itself, over every Unicode scalar value, so that it is that of
the Unicode versions that the wheel bundles (its Oniguruma, its Rust and its crates each have their own).

    .venv/bin/python tests/generators/make_unicode_tables.py model/tokenizer
"""
import sys
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

SCALARS = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
CHUNK = 4096
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
PROPERTIES = """Alphabetic Word Emoji Extended_Pictographic Arabic Armenian Bengali Bopomofo Common Cyrillic Devanagari
    Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul Hebrew Hiragana Inherited Kannada Katakana Khmer Lao Latin
    Malayalam Mongolian Myanmar Sinhala Tamil Telugu Thai Tibetan""".split()


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


def isolated_by(pre_tokenizer):
    return [code for code in SCALARS if len(pre_tokenizer.pre_tokenize_str(f"a{chr(code)}b")) == 3]


def removed_by(normalizer):
    return [code for code in SCALARS if normalizer.normalize_str(f"a{chr(code)}b") == "ab"]


def normalizing():
    """Code points that decompose, compose or change places under some normalization form."""
    canonical, compatible = normalizers.NFD(), normalizers.NFKD()
    found = set(range(0x1100, 0x1200))  # Hangul Jamo compose by arithmetic
    for code in SCALARS:
        character = chr(code)
        pieces = canonical.normalize_str(character)
        if pieces != character:
            found.update([code, *map(ord, pieces)])
        pieces = compatible.normalize_str(character)
        if pieces != character:
            found.update([code, *map(ord, pieces)])
        # U+0345 has the highest combining class: whatever has another one goes before it.
        if canonical.normalize_str(f"a\u0345{character}") != f"a\u0345{pieces}":
            found.add(code)
    found.add(0x345)
    return sorted(found)


def lowercase():
    """(first, last, step, difference) of runs of code points whose lower case is one other code point."""
    normalizer = normalizers.Lowercase()
    rows, several = [], []
    for code in SCALARS:
        lower = normalizer.normalize_str(chr(code))
        if len(lower) > 1:
            several.append(code)
        elif lower != chr(code):
            difference = ord(lower) - code
            row = rows[-1] if rows else None
            if row and row[3] == difference and code - row[1] in ((row[2],) if row[2] else (1, 2)):
                row[1:3] = [code, code - row[1]]
            else:
                rows.append([code, code, 0, difference])
    assert several == [0x130], several  # written out in unicode.cpp
    return [[first, last, step or 1, difference] for first, last, step, difference in rows]


def ranges(codes):
    result = []
    for code in codes:
        if result and result[-1][1] == code - 1:
            result[-1][1] = code
        else:
            result.append([code, code])
    return result


def runs(codes):
    """(first, last, step): ranges, and every other code point where such alternate, as capital and small letters do."""
    result = []
    for first, last in ranges(codes):
        before = result[-1] if result else None
        if before and first == last == before[1] + 2 and (before[2] == 2 or before[0] == before[1]):
            before[1:] = [first, 2]
        else:
            result.append([first, last, 1])
    return result


def table(name, comment, codes):
    return cells(f"inline constexpr CodePointRange {name}[]", comment, [f"0x{a:X}, 0x{b:X}" for a, b in ranges(codes)], 6)


def property_table(name):
    rows = [f"0x{a:X}, 0x{b:X}" + (f", {step}" if step > 1 else "") for a, b, step in runs(matching(rf"\p{{{name}}}"))]
    return cells(f"inline constexpr CodePointRun k{name.replace('_', '')}Property[]", "", rows, 6)


def cells(declaration, comment, rows, per_line):
    rows = [f"{{{row}}}" for row in rows]
    lines = ["    " + ", ".join(rows[i : i + per_line]) + "," for i in range(0, len(rows), per_line)]
    comment = [f"// {comment}"] if comment else []
    return "\n".join([*comment, f"{declaration} = {{", *lines, "};"])


def opening(includes):
    return (f"// Made by tests/generators/make_unicode_tables.py from tokenizers {tokenizers.__version__}; not to be edited.\n"
            f"// clang-format off\n#pragma once\n\n{includes}#include \"model/tokenizer/unicode.h\"\n\nnamespace kvc {{")


def unicode_ranges():
    struct = ("// Every step-th code point from first to last has its lower case `difference` further on.\n"
              "struct LowercaseRange {\n  char32_t first, last;\n  char32_t step;\n  int difference;\n};")
    words = sorted(set(word_characters()) ^ set(matching(r"\p{Word}")))
    return [opening(""), struct,
            table("kWhiteSpaceRanges", r"\s of its Oniguruma, White_Space of its Rust.", matching(r"\s")),
            table("kWordDifferences", r"Where \w of its Rust regex and Word of its Oniguruma differ.", words),
            table("kNumericRanges", "is_numeric of its Rust.", isolated_by(pre_tokenizers.Digits(True))),
            table("kPunctuationRanges", "What its pre-tokenizer Punctuation takes for punctuation.",
                  isolated_by(pre_tokenizers.Punctuation())),
            table("kCombiningMarkRanges", "What its normalizer StripAccents removes.", removed_by(normalizers.StripAccents())),
            table("kNormalizingRanges", "What its normalization forms decompose, compose or reorder.", normalizing()),
            cells("inline constexpr LowercaseRange kLowercaseRanges[]", "Its normalizer Lowercase, without U+0130.",
                  [f"0x{a:X}, 0x{b:X}, {step}, {difference}" for a, b, step, difference in lowercase()], 4),
            "}  // namespace kvc"]


def property_ranges():
    names = [*CATEGORIES, *PROPERTIES]
    tables = [property_table(name) for name in names]
    rows = [f'"{name.replace("_", "").lower()}", k{name.replace("_", "")}Property' for name in names]
    struct = ("// Every step-th code point from first to last.\nstruct CodePointRun {\n  char32_t first, last;\n"
              "  char32_t step = 1;\n};\n\nstruct NamedProperty {\n"
              "  std::string_view name;  // as Oniguruma compares names: lower case, no _\n"
              "  std::span<const CodePointRun> runs;\n};")
    listed = cells("inline constexpr NamedProperty kProperties[]", r"\p{...} of its Oniguruma; general categories come first.",
                   rows, 3)
    return [opening("#include <span>\n#include <string_view>\n\n"), struct, *tables, f"inline constexpr int kNumCategories = {len(CATEGORIES)};", listed,
            "}  // namespace kvc"]


def main():
    for name, parts in (("unicode_ranges.h", unicode_ranges()), ("property_ranges.h", property_ranges())):
        Path(sys.argv[1], name).write_text("\n\n".join(parts) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
