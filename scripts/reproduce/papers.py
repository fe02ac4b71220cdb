"""The main table of each paper: its published rows, and the settings that give the same rows on any checkpoint.

PAPERS maps a name to:
  title, note    what the published numbers are
  tasks          of kvvalidate --tasks; "longbench" and "qa_*" only with files for them
  length         tokens of a prompt in the paper
  columns, published   {model: [(method, kept_ratio or None, values)]}; scores as printed
  rows           [(method, options)]: options of kvconvert, or {"policy": ..., "share": ...} of a cache with so many of the tokens
"""

RULER_XKV = ["niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_2", "niah_multiquery", "niah_multivalue", "qa_1", "qa_2",
             "vt", "fwe"]
LONGBENCH_KINDS = ["QA", "Sum.", "FShot", "Synth.", "Code"]


def convert(method, *options):
    return ["--method", method, "--preset", "paper", *map(str, options)]


def policies(*names):
    return [(f"{name}, {share:.0%} of the tokens", {"policy": name, "share": share}) for share in (0.2, 0.1, 0.05) for name in names]


PAPERS = {
    "commonkv": {
        "title": "CommonKV, table 1",
        "note": "LongBench by kind, and the mean over LongBench and RULER, which the paper merges by family; one task of each family "
                "runs here. A ratio of 0.3 keeps 0.7 of the cache",
        "tasks": ["niah_single_1", "niah_multikey_1", "niah_multiquery", "niah_multivalue", "vt", "fwe", "qa_1", "longbench"],
        "length": 8192,
        "columns": LONGBENCH_KINDS + ["mean of all"],
        "published": {
            "Llama-3.1-8B-Instruct": [
                ("full cache", 1.0, [17.20, 27.85, 68.31, 39.87, 61.15, 73.55]),
                ("MiniCache", None, [7.60, 18.19, 51.17, 15.01, 36.64, 18.90]),
                ("Palu", 0.7, [18.76, 27.55, 67.40, 36.21, 54.97, 72.14]),
                ("CommonKV", 0.7, [17.12, 25.38, 66.54, 41.48, 58.58, 72.31]),
                ("Palu", 0.5, [17.87, 26.27, 65.97, 25.45, 38.43, 68.79]),
                ("CommonKV", 0.5, [16.74, 24.59, 64.62, 41.40, 57.86, 71.59]),
                ("Palu", 0.4, [9.20, 16.31, 46.95, 2.62, 23.32, 50.59]),
                ("CommonKV", 0.4, [15.74, 23.90, 61.77, 41.30, 53.54, 68.19])],
            "Mistral-7B-Instruct-v0.2": [
                ("full cache", 1.0, [32.30, 27.56, 64.77, 37.13, 55.17, 73.07]),
                ("MiniCache", None, [14.80, 19.86, 45.14, 2.46, 34.79, 22.83]),
                ("Palu", 0.7, [31.10, 27.04, 64.40, 35.30, 50.50, 71.39]),
                ("CommonKV", 0.7, [31.74, 25.81, 63.26, 35.04, 55.15, 71.84]),
                ("Palu", 0.5, [30.70, 26.31, 63.25, 22.01, 45.42, 68.21]),
                ("CommonKV", 0.5, [30.41, 24.36, 59.62, 33.45, 53.35, 70.57]),
                ("Palu", 0.4, [27.46, 25.19, 61.49, 12.81, 31.94, 63.07]),
                ("CommonKV", 0.4, [28.56, 23.84, 59.91, 28.85, 54.28, 68.61])]},
        "rows": [("MiniCache", convert("minicache")),
                 *((name, convert(name.lower(), "--kept-ratio", kept, *(["--rank", 0.6] if name == "CommonKV" and kept == 0.4 else [])))
                   for kept in (0.7, 0.5, 0.4) for name in ("Palu", "CommonKV"))],
    },
    "fusedkv": {
        "title": "FusedKV, 1.5B models trained from scratch",
        "note": "validation loss, WikiText perplexity and mean accuracy of models that were trained with half of the cache; the rows measured "
                "here convert a trained checkpoint instead, so only the order of methods compares",
        "tasks": [],
        "length": 8192,
        "columns": ["loss", "WikiText perplexity", "mean accuracy"],
        "published": {
            "1.5B, FineWeb-Edu": [
                ("full cache", 1.0, [2.241, 13.67, 54.55]), ("CLA", 0.5, [2.258, 14.19, 53.91]), ("YOCO", 0.5, [2.244, 13.65, 54.19]),
                ("FusedKV-Lite", 0.5, [2.225, 13.45, 55.30]), ("FusedKV", 0.5, [2.221, 13.33, 55.82])]},
        "rows": [(name, convert(method, "--min-r2", -1e9)) for name, method in
                 (("CLA", "cla"), ("YOCO", "yoco"), ("FusedKV-Lite", "fusedkv-lite"), ("FusedKV", "fusedkv"))],
    },
    "xkv": {
        "title": "xKV, table 1",
        "note": "RULER at 64k tokens; a compression of 2.4 keeps 0.42 of the cache",
        "tasks": RULER_XKV,
        "length": 65536,
        "columns": ["N-S1", "N-S2", "N-MK1", "N-MK2", "N-MQ", "N-MV", "QA-1", "QA-2", "VT", "FWE", "mean"],
        "published": {
            "Llama-3.1-8B-Instruct": [
                ("full cache", 1.0, [100, 100, 99.0, 97.9, 99.0, 98.4, 83.3, 60.4, 97.3, 84.7, 92.0]),
                ("MiniCache", 1 / 1.3, [87.5, 64.6, 39.6, 10.4, 13.3, 20.1, 60.4, 35.4, 49.0, 58.0, 43.8]),
                ("Single SVD", 1 / 2.5, [100, 100, 100, 97.9, 97.9, 96.1, 80.2, 58.3, 96.9, 79.5, 90.7]),
                ("xKV-4", 1 / 2.4, [100, 100, 100, 97.9, 98.4, 97.1, 84.4, 60.4, 96.2, 81.2, 91.6]),
                ("Single SVD", 1 / 8.4, [29.2, 26.0, 32.3, 96.9, 8.6, 17.2, 44.8, 36.5, 2.7, 59.0, 35.3]),
                ("xKV-4", 1 / 8.0, [100, 96.9, 97.9, 97.9, 95.3, 93.5, 76.0, 54.2, 87.7, 78.8, 87.8])],
            "Qwen2.5-7B-Instruct-1M": [
                ("full cache", 1.0, [100, 100, 100, 100, 100, 95.6, 83.3, 59.4, 90.8, 86.5, 91.6]),
                ("MiniCache", 1 / 1.3, [25.0, 0, 0, 0, 0, 0, 13.5, 13.5, 0.8, 4.5, 5.7]),
                ("Single SVD", 1 / 2.3, [100, 100, 99.0, 99.0, 99.7, 92.7, 75.0, 58.3, 80.8, 75.7, 88.0]),
                ("xKV-4", 1 / 2.2, [100, 100, 100, 99.0, 100, 90.9, 83.3, 60.4, 85.0, 83.0, 90.2]),
                ("Single SVD", 1 / 6.4, [24.0, 7.3, 6.2, 97.9, 4.4, 3.4, 36.5, 35.4, 6.9, 26.4, 24.8]),
                ("xKV-4", 1 / 6.2, [100, 85.4, 91.7, 99.0, 84.1, 76.8, 62.5, 50.0, 66.2, 64.9, 78.1])]},
        "rows": [("MiniCache", convert("minicache")),
                 *((name, ["--method", "xkv", "--group", str(group), "--kept-ratio", kept, "--sink", "0", "--window", "0"])
                   for kept in ("0.42", "0.125") for name, group in (("Single SVD", 1), ("xKV-4", 4)))],
    },
    "zeromerge": {
        "title": "ZeroMerge, table 2",
        "note": "ROUGE-L on XSum; pass records in LongBench's layout, whose dataset is scored by ROUGE-L",
        "tasks": ["longbench"],
        "length": 4096,
        "columns": ["ROUGE-L"],
        "published": {
            model: [("full cache", 1.0, [full]),
                    *((name, share, [score]) for share, scores in rows.items() for name, score in zip(("H2O", "LESS", "ZeroMerge"), scores))]
            for model, full, rows in (("Llama-2-7B", 25.50, {0.2: (25.71, 25.44, 26.42), 0.1: (25.28, 25.58, 26.75), 0.05: (24.35, 25.02, 25.72)}),
                                      ("Falcon-7B", 22.39, {0.2: (20.14, 20.76, 21.34), 0.1: (11.02, 7.50, 17.50), 0.05: (10.36, 6.76, 12.73)}))},
        "rows": policies("h2o", "zeromerge"),
    },
    "semsharekv": {
        "title": "SemShareKV, table 1",
        "note": "ROUGE-L of answers to prompts that were read with the cache of a similar one",
        "tasks": [],
        "length": 5000,
        "columns": ["MultiNews", "WikiHow", "Qasper", "SAMSum", "PubMed", "BookSum", "BigPatent", "LCC", "MMLU"],
        "published": {
            "Mistral-7B": [("full cache", 1.0, [22.10, 20.50, 17.10, 18.79, 24.66, 22.44, 25.47, 22.41, 34.00]),
                           ("SemShareKV", None, [23.15, 19.38, 16.52, 21.22, 24.30, 22.50, 26.62, 21.55, 32.50]),
                           ("SnapKV", None, [23.07, 21.32, 15.55, 20.16, 24.58, 23.22, 25.78, 25.98, 35.50]),
                           ("H2O", None, [23.04, 21.33, 15.88, 20.50, 23.53, 22.77, 24.99, 16.57, 33.00])],
            "Llama-3.1-8B": [("full cache", 1.0, [22.49, 19.71, 14.21, 16.69, 24.50, 22.65, 27.26, 19.01, 55.00]),
                             ("SemShareKV", None, [23.18, 20.41, 14.41, 18.61, 24.04, 21.66, 26.71, 21.39, 51.00]),
                             ("SnapKV", None, [23.84, 21.65, 14.70, 16.07, 24.82, 22.76, 27.48, 19.16, 52.50]),
                             ("H2O", None, [22.81, 20.61, 14.44, 16.81, 24.19, 22.08, 26.94, 21.32, 47.50])]},
        "rows": [],
    },
}
