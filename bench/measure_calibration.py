#!/usr/bin/env python3
"""Measures what calibration text and its amount leave of a coded cache's divergence, and prints tables for docs/quality.md.

measure_calibration.py sources --bin build/cpu/bin MODEL --text HELDOUT [--domain FILE] [--seq-len 512] [--kept-ratio 0.25]
measure_calibration.py effort  --bin build/cpu/bin MODEL --text HELDOUT [--domain FILE] [--tokens 5000 10000 ...] [--metric fisher ...]
measure_calibration.py misfits --bin build/cpu/bin MODEL --text HELDOUT [--domain FILE] [--language FILE] [--seeds 10]
                               [--tuned CHECKPOINT --tuned-text HELDOUT --tuned-domain FILE]

`sources` compares what the model writes itself, the built-in text, both, and text of the judged kind, for every scope;
`effort` compares numbers of tokens, lengths of rows and metrics; `misfits` compares calibration that does not suit what is
judged: another domain, code, another language (--language), a tenth of the tokens, plain text where chats are judged, and
for a fine-tuned checkpoint (--tuned) the text of its base. It ends with the spread over --seeds of the default text. What
has been measured is kept in --results (JSON lines), so that a run that was stopped goes on.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tests" / "data" / "texts"


def measure(options, calibration, num_sequences, seq_len, scope, metric, form="full", seed=0, model=None, text=None):
    """{"kld", "error", "kept_ratio", "seconds"}; seconds are those of the conversion, its own text included.

    model, text: in place of the options'.
    """
    model, text = model or options.model, text or options.text
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kvc-calibration-"))
    try:
        arguments = [options.bin / "kvconvert", model, "--method", "coded", "--kept-ratio", options.kept_ratio, "--sink", 0,
                     "--window", 0, "--scope", scope, "--form", form, "--metric", metric, "--num-sequences", num_sequences,
                     "--seq-len", seq_len, "--seed", seed, "--out", scratch / "converted", "--no-validate", "--quiet"]
        for source in calibration:
            arguments += ["--calibration", source]
        started = time.monotonic()
        subprocess.run([str(argument) for argument in arguments], check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        judged = subprocess.run(
            [str(argument) for argument in
             [options.bin / "kvvalidate", model, scratch / "converted", "--text", text, "--block", 64,
              "--num-sequences", options.num_sequences, "--seq-len", options.seq_len, "--quiet", "--json"]],
            check=True, capture_output=True, text=True)
        report = json.loads(judged.stdout)
        kld = report["continuation"]["kl_divergence"]
        return {"kld": kld["mean"], "error": kld["standard_error"], "kept_ratio": report["kept_ratio"], "seconds": seconds}
    finally:
        shutil.rmtree(scratch)


def chat_of(path, scratch):
    """A copy of a text whose paragraphs are turns of a chat, in ChatML."""
    parts = [part.strip() for part in path.read_text(encoding="utf-8").split("\n\n") if part.strip()]
    roles = ("user", "assistant")
    turns = [f"<|im_start|>{roles[i % 2]}\n{part}<|im_end|>\n" for i, part in enumerate(parts)]
    copy = scratch / f"{path.stem}_chat.txt"
    copy.write_text("".join(turns), encoding="utf-8")
    return copy


def code_text(scratch):
    """Source code: this project's own core."""
    copy = scratch / "code.txt"
    copy.write_text("".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "core").glob("*.cpp"))), encoding="utf-8")
    return copy


def misfits_of(options, scratch):
    """[(name, arguments of measure)] of calibration that does not suit what is judged, and of seeds."""
    rows, default = options.rows, ["self", "builtin"]
    cases = [("of the judged kind", {"calibration": [options.domain]}),
             ("of the judged kind, a tenth of the tokens", {"calibration": [options.domain], "num_sequences": max(1, rows // 10)}),
             ("a novel", {"calibration": ["builtin"]}),
             ("code", {"calibration": [code_text(scratch)]})]
    if options.language:
        cases.append(("another language", {"calibration": [options.language]}))
    chat_domain, chat_judged = chat_of(options.domain, scratch), chat_of(options.text, scratch)
    cases += [("chats judged, chats", {"calibration": [chat_domain], "text": chat_judged}),
              ("chats judged, the same without the template", {"calibration": [options.domain], "text": chat_judged}),
              ("chats judged, none given", {"calibration": default, "text": chat_judged})]
    if options.tuned:
        tuned = {"model": options.tuned, "text": options.tuned_text}
        cases += [("fine-tuned, text of its own kind", {"calibration": [options.tuned_domain], **tuned}),
                  ("fine-tuned, text of its base's kind", {"calibration": [options.domain], **tuned}),
                  ("fine-tuned, none given", {"calibration": default, **tuned})]
    cases += [(f"none given, seed {seed}", {"calibration": default, "seed": seed}) for seed in range(options.seeds)]
    common = {"num_sequences": rows, "seq_len": options.row_len, "metric": "fisher"}
    return [(f"{scope}, {form}, {name}", {**common, "scope": scope, "form": form, **arguments})
            for scope, form in (("layer", "full"), ("head", "rotated")) for name, arguments in cases]


def cases_of(options, scratch):
    """[(name, arguments of measure)]"""
    if options.table == "misfits":
        return misfits_of(options, scratch)
    if options.table == "sources":
        kinds = {"builtin": ["builtin"], "self": ["self"], "self and builtin": ["self", "builtin"], "of the judged kind": [options.domain]}
        return [(f"{scope}, {name}", {"calibration": sources, "num_sequences": options.rows, "seq_len": options.row_len,
                                      "scope": scope, "metric": "fisher"})
                for scope in options.scope for name, sources in kinds.items()]
    return [(f"{scope}, {metric}, {tokens} tokens in rows of {row_len}",
             {"calibration": [options.domain], "num_sequences": max(1, tokens // row_len), "seq_len": row_len, "scope": scope,
              "metric": metric})
            for scope in options.scope for metric in options.metric for row_len in options.row_lens for tokens in options.tokens]


def case_of(options, name):
    """The key of a measurement in --results."""
    of_table = "" if options.table == "effort" else f" {options.rows} rows of {options.row_len}"
    judged = f"{options.num_sequences} x {options.seq_len} of {options.text.name}"
    return f"{options.model.name} {judged} {options.kept_ratio} {options.table}{of_table} {options.domain.name} {name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["sources", "effort", "misfits"])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--text", type=pathlib.Path, default=TEXTS / "tinystories_heldout.txt")
    parser.add_argument("--domain", type=pathlib.Path, default=TEXTS / "tinystories_calibration.txt")
    parser.add_argument("--kept-ratio", type=float, default=0.25)
    parser.add_argument("--num-sequences", type=int, default=8, help="rows that are judged")
    parser.add_argument("--seq-len", type=int, default=512, help="tokens of each")
    parser.add_argument("--scope", nargs="+", default=["layer", "head"])
    parser.add_argument("--rows", type=int, default=40, help="calibration rows of `sources` and `misfits`")
    parser.add_argument("--row-len", type=int, default=1024, help="tokens of each; the model's context at most")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 5120, 10240, 20480, 40960])
    parser.add_argument("--row-lens", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--metric", nargs="+", default=["fisher", "attn", "none"])
    parser.add_argument("--language", type=pathlib.Path, help="a text of another language, for `misfits`")
    parser.add_argument("--seeds", type=int, default=10, help="seeds that `misfits` repeats the default calibration with")
    parser.add_argument("--tuned", type=pathlib.Path, help="a fine-tuned MODEL, for `misfits`")
    parser.add_argument("--tuned-text", type=pathlib.Path, help="what it is judged on")
    parser.add_argument("--tuned-domain", type=pathlib.Path, help="calibration text of that kind")
    parser.add_argument("--results", type=pathlib.Path, help="what was measured, a JSON object a line; gone on from")
    options = parser.parse_args()
    if options.tuned and not (options.tuned_text and options.tuned_domain):
        parser.error("--tuned needs --tuned-text and --tuned-domain")
    known = {}
    if options.results and options.results.exists():
        for line in options.results.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            known[entry["case"]] = entry
    print("| calibration | kept_ratio | KLD x 1000 | seconds |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="kvc-calibration-") as scratch:
        cases = cases_of(options, pathlib.Path(scratch))
        for name, arguments in cases:
            case = case_of(options, name)
            if case not in known:
                known[case] = {"case": case, **measure(options, **arguments)}
                if options.results:
                    with options.results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(known[case]) + "\n")
            entry = known[case]
            print(f"| {name} | {entry['kept_ratio']:.3f} | {1000 * entry['kld']:.3g} ± {1000 * (entry['error'] or 0):.2g} |"
                  f" {entry['seconds']:.0f} |", flush=True)
    for prefix in sorted({name.rsplit(" ", 1)[0] for name, arguments in cases if "seed" in arguments}):
        values = [1000 * known[case_of(options, name)]["kld"] for name, _ in cases if name.startswith(prefix + " ")]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{prefix}s: mean {statistics.mean(values):.3g}, standard deviation {spread:.2g}, {min(values):.3g} to {max(values):.3g}")


if __name__ == "__main__":
    main()
