"""Logits of two devices side by side. Needs nothing but Python."""

import array
import json
import math
import operator
import struct
import sys

# Of 16-bit activations beside float32: some roundings of the largest logit, as in tests/runtime/gpu/gpu_fixture.cpp.
ROUNDINGS = 4e-3
LEAST_LARGEST = 5.0


def read_logits(path):
    """[rows] of float32 logits for each sequence, in their order, as kvrun --logits writes them for --ids with lists."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    sequences = []
    for name in sorted(header, key=lambda name: int(name.rpartition(".")[2])):
        (rows, width), (begin, end) = header[name]["shape"], header[name]["data_offsets"]
        values = array.array("f", raw[8 + size + begin:8 + size + end])
        if sys.byteorder == "big":
            values.byteswap()
        sequences.append([values[row * width:(row + 1) * width] for row in range(rows)])
    return sequences


def differences(logits, others):
    """The largest difference in every row, of all sequences one after the other. NaN counts as infinite."""
    found = []
    for rows, other_rows in zip(logits, others):
        for row, other in zip(rows, other_rows):
            largest = max(map(abs, map(operator.sub, row, other)))
            # max() passes over NaN unless it comes first.
            found.append(largest if math.isfinite(largest) and math.isfinite(sum(row) + sum(other)) else math.inf)
    return found


def largest(logits):
    return max(max(map(abs, row)) for rows in logits for row in rows)


def same_top(logits, others):
    """Share of rows in which the same token is the most probable."""
    pairs = [(row, other) for rows, other_rows in zip(logits, others) for row, other in zip(rows, other_rows)]
    return sum(row.index(max(row)) == other.index(max(other)) for row, other in pairs) / len(pairs)


def tolerances(logits, rounding):
    """(what two devices may differ by, the most that `rounding` may be): `rounding` is how far 16-bit numbers lie from float32 on the
    CPU, over the same text."""
    few = ROUNDINGS * max(LEAST_LARGEST, largest(logits))
    return max(few, 2 * rounding), 5 * few


def greedy_gap(row, token):
    """How far below the most probable token's logit that of `token` lies."""
    return max(row) - row[token]


def mass_above(row, token, temperature, slack):
    """Probability of the tokens whose logits exceed that of `token` by more than `slack`."""
    top = max(row)
    weights = [math.exp((value - top) / temperature) for value in row]
    return sum(weight for weight, value in zip(weights, row) if value > row[token] + slack) / sum(weights)


def equal_share(tokens, others):
    """Share of positions with equal tokens, over all sequences."""
    pairs = [pair for mine, other in zip(tokens, others) for pair in zip(mine, other)]
    return sum(mine == other for mine, other in pairs) / max(1, len(pairs))
