#!/usr/bin/env python3
"""Runs one engine on one checkpoint, by the interpreter that has the engine; check_engines.py calls it.

run_engine.py ENGINE CHECKPOINT REQUEST.json ANSWER.npz

ENGINE names the file engine_ENGINE.py (model.py says what it defines). REQUEST: {"prompts": lists of ids, "tokens": how many
to generate, "capacity": ids of a text, or null}. With "capacity" ANSWER holds tokens_per_gib alone, else the arrays
logits.I and tokens.I for each prompt I.
"""

import importlib
import json
import pathlib
import sys
import tempfile

import numpy


def answers(engine, checkpoint, request):
    if request["capacity"]:
        return {"tokens_per_gib": engine.tokens_per_gib(checkpoint, request["capacity"])}
    found = {}
    with tempfile.TemporaryDirectory(prefix="kvc-engine-") as scratch:
        model = engine.load(checkpoint, pathlib.Path(scratch))
        for i, ids in enumerate(request["prompts"]):
            found[f"logits.{i}"] = numpy.asarray(model.logits(ids), numpy.float32)
            found[f"tokens.{i}"] = numpy.asarray(model.greedy(ids, request["tokens"]), numpy.int64)
    return found


def main():
    name, checkpoint, request, answer = sys.argv[1:]
    engine = importlib.import_module(f"engine_{name}")
    request = json.loads(pathlib.Path(request).read_text(encoding="utf-8"))
    numpy.savez(answer, **answers(engine, pathlib.Path(checkpoint), request))


if __name__ == "__main__":
    main()
