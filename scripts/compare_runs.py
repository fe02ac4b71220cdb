#!/usr/bin/env python3
"""Original and conversions side by side: what caches take, what that costs, how each continues a prompt.

compare_runs.py ORIGINAL=RUN.json NAME=RUN.json,REPORT.json ...

RUN.json is the output of `kvrun --json`, REPORT.json that of `kvvalidate --recall N --json`.
"""

import json
import pathlib
import sys

SHOWN_CHARACTERS = 320


def read(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


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


def cells(run, report, original):
    """A column: bytes of this text's cache, then what the held-out text says."""
    kv = run["kv"]
    column = [f"{kv['bytes']:,}", f"{kv['kept_ratio']:.3f}"]
    if report is None:
        return [*column, "", "", "", ""]
    measured, recall = report["continuation"], report["recall"]
    return [*column, f"{measured['kl_divergence']['mean']:.5f}", f"{100 * measured['same_top']['mean']:.1f} %",
            f"{100 * recall['candidate_accuracy']:.0f} %", str(common_prefix(original["tokens"], run["tokens"]))]


def main():
    if len(sys.argv) < 3 or not all("=" in word for word in sys.argv[1:]):
        sys.exit(__doc__)
    names, runs, reports = [], [], []
    for word in sys.argv[1:]:
        name, paths = word.rsplit("=", 1)
        run, _, report = paths.partition(",")
        names.append(name)
        runs.append(read(run))
        reports.append(read(report) if report else None)
    tokens = runs[0]["kv"]["tokens"]
    labels = [f"KV cache, bytes for {tokens} tokens", "kept_ratio", "KL divergence, nats a token", "same top token",
              "facts recalled", f"equal of {len(runs[0]['tokens'])} tokens"]
    columns = [cells(run, report, runs[0]) for run, report in zip(runs, reports)]
    widths = [max(len(name), *map(len, column)) for name, column in zip(names, columns)]
    first = max(map(len, labels))
    print(" " * first + "".join(f"  {name:>{width}}" for name, width in zip(names, widths)))
    for row, label in enumerate(labels):
        print(f"{label:<{first}}" + "".join(f"  {column[row]:>{width}}" for column, width in zip(columns, widths)))
    for name, run in zip(names, runs):
        print(f"\n{name}:\n  {beginning(run['text'])}")


if __name__ == "__main__":
    main()
