"""Compares the answers of run_engine.py, and shows what came out."""

import dataclasses

import numpy


@dataclasses.dataclass(frozen=True)
class Bounds:
    max_difference: float  # of logits, in standard deviations
    min_agreement: float


EXACT = Bounds(1e-4, 0.99)
# A sum of another order moves a number at the border of two codes to the other one, and a near tie goes the other way.
BOUNDS = {"original": EXACT, "folded": EXACT, "coded": Bounds(0.2, 0.9)}


class EngineError(Exception):
    """An engine that was installed and failed."""


def log_softmax(logits):
    logits = logits.astype(numpy.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))


def equal_from_start(found, expected):
    """How many tokens are equal before the first that differs."""
    return next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))


def until_end(tokens, ends):
    return next((list(tokens[:i]) for i, token in enumerate(tokens) if token in ends), list(tokens))


def compare(found, expected, ends):
    """The largest difference of logits in standard deviations, and the share of greedy tokens that agree."""
    difference, equal, total, spread = 0.0, 0, 0, []
    for i in range(sum(name.startswith("logits") for name in expected)):
        logits, reference = found[f"logits.{i}"], expected[f"logits.{i}"]
        if logits.shape != reference.shape or not numpy.isfinite(logits).all():
            raise EngineError(f"logits of prompt {i}: shape {logits.shape}, expected {reference.shape} finite numbers")
        difference = numpy.maximum(difference, numpy.abs(log_softmax(logits) - log_softmax(reference)).max())  # NaN, if one is
        spread.append(reference.ravel())
        texts = [until_end(answer[f"tokens.{i}"].tolist(), ends) for answer in (found, expected)]
        equal += equal_from_start(*texts)
        total += max(map(len, texts))
    return {"max_logit_difference": float(difference / numpy.concatenate(spread).std()), "greedy_agreement": equal / total}


def verdict(row, bounds):
    """What is wrong with a row's figures; empty where nothing is."""
    wrong = []
    if not row["max_logit_difference"] <= bounds.max_difference:  # nor NaN
        wrong.append(f"logits differ by {row['max_logit_difference']:.2g} standard deviations, bound {bounds.max_difference:.2g}")
    if not row["greedy_agreement"] >= bounds.min_agreement:
        wrong.append(f"{row['greedy_agreement']:.3f} of the greedy tokens agree, bound {bounds.min_agreement:.2f}")
    return "; ".join(wrong)


def cells(row):
    def shown(value, form):
        return "" if value is None else format(value, form)

    return [row["engine"], row["version"], row["checkpoint"], shown(row["max_logit_difference"], ".1e"),
            shown(row["greedy_agreement"], ".3f"), shown(row["tokens_per_gib"], ",d"),
            f"not installed: {row['not_run']}" if row["not_run"] else row["error"] or ""]


def table(rows):
    head = ["engine", "version", "checkpoint", "max logit difference", "greedy agreement", "tokens per GiB", "remark"]
    lines = [head, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    texts = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]
    return "\n".join([texts[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *texts[1:]])
