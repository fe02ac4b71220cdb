#!/usr/bin/env python3
"""lm-evaluation-harness on a checkpoint and on its conversion for transformers, side by side, without a network.

check_lm_eval.py ORIGINAL CONVERTED [--tasks kvc_recall kvc_choice kvc_stories] [--recall 50] [--stories 12]
                 [--text FILE] [--batch-size 4] [--dtype float32] [--json FILE]

The tasks (lm_eval_tasks.py) are made on the spot. The harness runs as `python -m kvconvert.lm_eval --model hf` in
build/engines/lm_eval, which is installed if need be. Prints each metric of both, with the harness's standard error.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from environments import ROOT, InstallError, engine_python
from lm_eval_tasks import TASKS, write_tasks

PACKAGES = ("lm_eval", "accelerate")
HELD_OUT = ROOT / "tests" / "data" / "texts" / "tinystories_heldout.txt"


def harness_environment(scratch):
    """No hub, and no cache that outlives the run."""
    others = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{ROOT / 'python'}" + (f":{others}" if others else ""), "HF_HOME": str(scratch / "hf"),
                         "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                         "OMP_WAIT_POLICY": "passive"}


def evaluate(python, checkpoint, folder, options):
    """The harness's results for all tasks: {task: {metric: value}}."""
    out = pathlib.Path(tempfile.mkdtemp(prefix="results-", dir=folder))  # of this checkpoint alone
    command = [python, "-m", "kvconvert.lm_eval", "run", "--model", "hf", "--model_args",
               f"pretrained={checkpoint},dtype={options.dtype}", "--tasks", ",".join(options.tasks), "--include_path", folder,
               "--device", "cpu", "--batch_size", options.batch_size, "--output_path", out]
    process = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             env=harness_environment(folder))
    reports = sorted(out.rglob("results_*.json"))
    if process.returncode or not reports:
        sys.exit(f"check_lm_eval: error: {checkpoint}: the harness ended with exit code {process.returncode}:\n{process.stderr[-3000:]}")
    return json.loads(reports[-1].read_text(encoding="utf-8"))["results"]


def metrics(results):
    """{"task metric": (value, standard error or None)}"""
    found = {}
    for task, values in results.items():
        for key, value in values.items():
            name, _, kind = key.partition(",")
            if isinstance(value, float) and "_stderr" not in name:
                error = values.get(f"{name}_stderr,{kind}")
                found[f"{task} {name}"] = (value, error if isinstance(error, float) else None)
    return found


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=pathlib.Path)
    parser.add_argument("converted", type=pathlib.Path)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), metavar="TASK", default=list(TASKS))
    parser.add_argument("--recall", type=int, default=50, help="lists of facts")
    parser.add_argument("--stories", type=int, default=12, help="texts of held-out stories")
    parser.add_argument("--text", type=pathlib.Path, default=HELD_OUT)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def main():
    options = parse_arguments()
    try:
        python = engine_python("lm_eval", PACKAGES)
    except InstallError as error:
        print(f"check_lm_eval: {error}", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory(prefix="kvc-lm-eval-") as folder:
        folder = pathlib.Path(folder)
        write_tasks(folder, options.text.read_text(encoding="utf-8"), options.recall, options.stories)
        original, converted = (metrics(evaluate(python, checkpoint.resolve(), folder, options))
                               for checkpoint in (options.original, options.converted))
    print(f"{'':28} {'original':>18} {'converted':>18}")
    for name in original:
        texts = [f"{value:.4f}" + (f" ± {error:.4f}" if error is not None else "") for value, error in (original[name], converted[name])]
        print(f"{name:28} {texts[0]:>18} {texts[1]:>18}")
    if options.json:
        options.json.write_text(json.dumps({"original": original, "converted": converted}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
