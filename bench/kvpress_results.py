#!/usr/bin/env python3
"""Turns results of `kvvalidate --tasks kvpress` into result directories of NVIDIA's kvpress.

kvpress_results.py RESULTS.jsonl DATA.jsonl --name coded --kept-ratio 0.25 --model NAME --out DIR [--data-dir 4096]

RESULTS.jsonl is a file of --task-results, DATA.jsonl the records of its --task-text. DIR gets a directory for each model, with
predictions.csv, metrics.json and config.yaml as kvpress's evaluation/evaluate.py names and fills them: the reference as press
no_press, the candidate as press NAME with a compression_ratio of 1 - kept ratio. A run over a part of DATA.jsonl has its fraction
in config.yaml and in the directory's name. Lists in predictions.csv are written as Python's.
"""

import argparse
import collections
import csv
import hashlib
import json
import pathlib
import re
import shutil
import sys

SUITE = "kvpress/"
FIELDS = {"context": str, "question": str, "answer_prefix": str, "answer": list, "task": str, "max_new_tokens": int}
OF_RESULTS = {"run": str, "task": str, "length": int, "seed": int, "sample": int, "prompt_sha256": str}
KINDS = {str: "a text", int: "a whole number", list: "a list with texts"}
COLUMNS = ("task", "question", "answer_prefix", "answer", "max_new_tokens", "predicted_answer", "compression_ratio")
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f]")
PLAIN_YAML = re.compile(r"[A-Za-z_/.][\w/.+-]*")
YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n", ".inf", ".nan", ".", ""}


class Error(Exception):
    """What is wrong with the files, as one sentence."""


def objects_of(path):
    """[(place, object)] of a file of JSON lines; a place is FILE:LINE."""
    objects = []
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise Error(f"{place}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise Error(f"{place}: expected a JSON object, found {line[:40]}")
        objects.append((place, value))
    return objects


def check_fields(place, value, kinds):
    for name, kind in kinds.items():
        if name not in value:
            raise Error(f'{place}: "{name}" is missing')
        found = value[name]
        if type(found) is not kind or (kind is list and not (found and all(isinstance(text, str) for text in found))):
            raise Error(f'{place}: "{name}" must be {KINDS[kind]}, found {json.dumps(found)[:40]}')


def check_outputs(place, line):
    for model in ("reference", "candidate"):
        outputs = line[model].get("outputs") if isinstance(line.get(model), dict) else None
        if not isinstance(outputs, list) or not outputs or not isinstance(outputs[0], str):
            raise Error(f'{place}: "{model}" has no "outputs"; expected a list with a text')


def records_of(path):
    """The records of each task, in the file's order."""
    by_task = collections.defaultdict(list)
    for place, record in objects_of(path):
        check_fields(place, record, FIELDS)
        by_task[record["task"]].append(record)
    return by_task


def prompt_hash(record):
    text = f"{record['context']}{record['question']}\n{record['answer_prefix']}"
    return hashlib.sha256(text.encode()).hexdigest()


def answers_of(results, data):
    """[(record, the line's object)] in the order of the results, and the share of all records that have a line."""
    by_task = records_of(data)
    answers, lengths, runs, seen = [], set(), set(), set()
    for place, line in objects_of(results):
        check_fields(place, line, {"task": str})
        if not line["task"].startswith(SUITE):
            continue
        check_fields(place, line, OF_RESULTS)
        check_outputs(place, line)
        lengths.add(line["length"])
        runs.add((line["run"], line["seed"]))
        if len(lengths) > 1:
            raise Error(f"{place}: of another length than lines before; a directory is of one, so run a single --task-length")
        if len(runs) > 1:
            raise Error(f"{place}: of another run than lines before; a directory is of one")
        name, sample = line["task"].removeprefix(SUITE), line["sample"]
        records = by_task.get(name, [])
        if not 0 <= sample < len(records) or prompt_hash(records[sample]) != line["prompt_sha256"]:
            raise Error(f"{place}: its prompt is not record {sample} of task {name} in {data}; give the file that --task-text had")
        if (name, sample) in seen:
            raise Error(f"{place}: record {sample} of task {name} has another line before")
        seen.add((name, sample))
        answers.append((records[sample], line))
    if not answers:
        raise Error(f"{results}: has no line of --tasks kvpress")
    return answers, len(answers) / sum(map(len, by_task.values()))


def rows_of(answers, model, compression_ratio):
    """Rows of predictions.csv for "reference" or "candidate"."""
    return [dict({name: record[name] for name in FIELDS if name != "context"},
                 predicted_answer=line[model]["outputs"][0], compression_ratio=compression_ratio) for record, line in answers]


def found_share(row):
    text = CONTROL_CHARACTERS.sub("", row["predicted_answer"].strip()).strip().lower()
    found = [1.0 if answer.lower() in text else 0.0 for answer in row["answer"]]
    return max(found) if row["task"].split("_")[0] == "qa" else sum(found) / len(found)


def metrics_of(rows):
    by_task = collections.defaultdict(list)
    for row in rows:
        by_task[row["task"]].append(found_share(row))
    return {task: {"string_match": round(sum(shares) / len(shares) * 100, 2)} for task, shares in sorted(by_task.items())}


def yaml_scalar(value):
    if value is None or isinstance(value, (bool, dict)):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if PLAIN_YAML.fullmatch(value) and value.lower() not in YAML_WORDS and not re.match(r"\.\d", value):
        return value
    return "'" + value.replace("'", "''") + "'" if value.isprintable() else json.dumps(value)


def config_of(arguments, press_name, compression_ratio, fraction, line):
    """kvpress's settings in its order; those that a press of kvpress alone has are null."""
    is_candidate = press_name != "no_press"
    return {"dataset": "ruler", "data_dir": arguments.data_dir, "model": arguments.model, "device": None, "press_name": press_name,
            "compression_ratio": compression_ratio, "key_channel_compression_ratio": None, "fraction": fraction, "max_new_tokens": None,
            "max_context_length": None, "query_aware": False, "needle_depth": None, "compression_interval": None, "target_size": None,
            "hidden_states_buffer_size": None, "output_dir": arguments.out, "log_level": "INFO", "model_kwargs": {},
            "press_init_command": f"kvvalidate --tasks kvpress, run {line['run']}" if is_candidate else "None", "seed": line["seed"],
            "fp8": False}


def directory_name(config):
    parts = [config["dataset"], config["data_dir"], config["model"].replace("/", "--"), config["press_name"],
             f"{config['compression_ratio']:.2f}", f"fraction{config['fraction']:.3f}" if config["fraction"] < 1 else ""]
    return "__".join(filter(None, parts))


def write_directory(directory, config, rows):
    directory.mkdir()
    with open(directory / "predictions.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (directory / "metrics.json").write_text(json.dumps(metrics_of(rows), indent=4), encoding="utf-8")
    lines = [f"{name}: {yaml_scalar(value)}\n" for name, value in config.items()]
    (directory / "config.yaml").write_text("".join(lines), encoding="utf-8")


def write_results(arguments):
    """The directories that were written."""
    answers, fraction = answers_of(arguments.results, arguments.data)
    models = (("reference", "no_press", 0.0), ("candidate", arguments.name, round(1 - arguments.kept_ratio, 6)))
    out = pathlib.Path(arguments.out)
    configs = [config_of(arguments, press_name, ratio, fraction, answers[0][1]) for _, press_name, ratio in models]
    directories = [out / directory_name(config) for config in configs]
    for directory in directories:
        if directory.exists():
            raise Error(f"{directory}: exists; remove it or give another --out")
    out.mkdir(parents=True, exist_ok=True)
    partial = out / f".{directories[1].name}.partial"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        for (model, _, ratio), config, directory in zip(models, configs, directories):
            write_directory(partial / directory.name, config, rows_of(answers, model, ratio))
        for directory in directories:
            (partial / directory.name).rename(directory)
    finally:
        shutil.rmtree(partial)
    return directories


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", help="JSONL file of kvvalidate --tasks kvpress --task-results")
    parser.add_argument("data", help="the records of its --task-text")
    parser.add_argument("--name", required=True, help="the candidate's press_name")
    parser.add_argument("--kept-ratio", type=float, required=True, help="bytes of the candidate's cache / the original's, in (0, 1]")
    parser.add_argument("--model", required=True, help="the reference's name, e.g. Qwen/Qwen3-8B")
    parser.add_argument("--out", required=True, help="directory that gets the result directories")
    parser.add_argument("--data-dir", default="4096", help="kvpress's data_dir: the length of the dataset (default: 4096)")
    arguments = parser.parse_args()
    if not 0 < arguments.kept_ratio <= 1:
        parser.error(f"--kept-ratio {arguments.kept_ratio:g}: must be above 0 and at most 1")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", arguments.name) or arguments.name == "no_press":
        parser.error(f"--name {arguments.name}: expected letters, digits, _, . and -, and not no_press, which is the reference")
    if not re.fullmatch(r"\w*", arguments.data_dir):
        parser.error(f"--data-dir {arguments.data_dir}: expected letters and digits, such as 4096")
    return arguments


def main():
    try:
        for directory in write_results(parse_arguments()):
            print(directory)
    except (Error, OSError) as error:
        sys.exit(f"kvpress_results.py: error: {error}")


if __name__ == "__main__":
    main()
