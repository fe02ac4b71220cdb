#!/usr/bin/env python3
"""What a stranger tries first: both commands of the README on a model of every family, with contexts that are short."""

import json
import shutil
import unittest

from programs import DATA, ProgramTest, copy_checkpoint, edit_config, run

ZOO = DATA / "zoo"
RANK = ("--group", "4", "--rank", "0.7")
RATIO = ("--kept-ratio", "0.25")
CONTEXTS = (128, 256, 512)
# Texts and statistics of these tiny models take a second.
SHORT = ("--num-sequences", "24", "--threads", "1")


def families():
    """{model_type: a checkpoint of it}"""
    cases = {}
    for path in sorted(ZOO.iterdir()):
        if path.is_dir():
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
            cases.setdefault(config["model_type"], path)
    return cases


def converts(method):
    listed = json.loads(run("kvconvert", "--list-models", "--json").stdout)["families"]
    return {family["model_type"] for family in listed if family["methods"].get(method) is None}


class FirstContact(ProgramTest):
    def checkpoint(self, model_type, source, context):
        target = copy_checkpoint(source, self.directory / f"{model_type}-{context}")
        shutil.copy(ZOO / "tokenizer.json", target)
        path = target / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        if "text_config" in config:
            edit_config(target, text_config={**config["text_config"], "max_position_embeddings": context})
        else:
            edit_config(target, max_position_embeddings=context)
        return target

    def test_both_commands_plan_every_family_at_every_context(self):
        for method, command in (("commonkv", RANK), ("coded", RATIO)):
            known = converts(method)
            for model_type, source in families().items():
                for context in CONTEXTS:
                    with self.subTest(method=method, model_type=model_type, context=context):
                        checkpoint = self.checkpoint(model_type, source, context)
                        if model_type in known:
                            plan = json.loads(self.run_ok("kvconvert", checkpoint, "--plan", "--json", *command).stdout)
                            self.assertLess(plan["kept_ratio_at_target"], 0.75)
                        shutil.rmtree(checkpoint)

    def convert_all(self, method, command, *forms):
        known = converts(method)
        cases = [case for case in families().items() if case[0] in known]
        self.assertGreater(len(cases), 10)
        for index, (model_type, source) in enumerate(cases):
            context = CONTEXTS[index % len(CONTEXTS)]
            with self.subTest(method=method, model_type=model_type, context=context):
                checkpoint = self.checkpoint(model_type, source, context)
                out = self.directory / f"{model_type}-{method}"
                process = self.run_ok("kvconvert", checkpoint, *command, *SHORT, *forms, "--out", out)
                self.assertRegex(process.stdout, r"kept_ratio 0\.\d+ of \d+ tokens  KLD .*  pays from ")

    def test_ranks_convert_every_family_factored_and_folded(self):
        self.convert_all("commonkv", RANK, "--export", "both")

    def test_a_ratio_converts_every_family(self):
        self.convert_all("coded", RATIO)


if __name__ == "__main__":
    unittest.main()
