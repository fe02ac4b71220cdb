#!/usr/bin/env python3
"""Compares two results of `kvrun --json`: compare_runs.py ORIGINAL.json CONVERTED.json"""

import json
import sys

SHOWN_CHARACTERS = 320


def common_prefix(first, second):
    """How many leading tokens two generations share."""
    count = 0
    for a, b in zip(first, second):
        if a != b:
            break
        count += 1
    return count


def beginning(text):
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS].rsplit(" ", 1)[0] + " ..."


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    original, converted = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
    for name, run in (("original", original), ("converted", converted)):
        kv = run["kv"]
        print(f"{name}: KV cache {kv['bytes']:,} bytes for {kv['tokens']} tokens"
              f" (kept_ratio {kv['bytes'] / kv['original_bytes']:.3f})")
        print(f"  {beginning(run['text'])}\n")
    shared = common_prefix(original["tokens"], converted["tokens"])
    print(f"equal tokens from the start: {shared} of {len(original['tokens'])}")


if __name__ == "__main__":
    main()
