#!/usr/bin/env python3
"""Bad input gives one clear message, exit 1 or 2, and leaves nothing behind."""

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from programs import FAST, REFERENCE, STORIES, ProgramTest, command, copy_checkpoint, edit_config, edit_tensors

K_PROJ = "model.layers.2.self_attn.k_proj.weight"


class Checkpoints(ProgramTest):
    def setUp(self):
        super().setUp()
        self.checkpoint = copy_checkpoint(STORIES, self.directory / "checkpoint")

    def assert_unusable(self, *words):
        out = self.directory / "out"
        self.assert_refused({1}, words, "kvconvert", self.checkpoint, "--out", out, *FAST)
        self.assert_refused({1}, words, "kvrun", self.checkpoint, "--prompt", "Once")

    def test_numbers_that_are_not_finite(self):
        """The message names the part that holds them, whichever statistics notice."""
        nan = struct.pack("<f", float("nan"))
        for tensor, words in (("model.layers.2.self_attn.o_proj.weight", ("layer 2: its output is not finite",)),
                              ("model.norm.weight", ("the loss is not finite", "last norm"))):
            def damage(tensors):
                tensors[tensor][2] = nan + tensors[tensor][2][len(nan):]

            checkpoint = copy_checkpoint(STORIES, self.directory / tensor)
            edit_tensors(checkpoint, damage)
            short = ("--num-sequences", "3", "--seq-len", "64")
            for program, *flags in (("kvfisher",), ("kvfisher", "--metric"), ("kvcalibrate",), ("kvcalibrate", "--covariance"),
                                    ("kvcalibrate", "--analyze")):
                if program == "kvfisher" or "layers" in tensor:
                    self.assert_refused({1}, (str(checkpoint), *words), program, checkpoint, *flags, *short, "--out", self.directory / "out")
            for beams in ((), ("--beams", "2")):
                self.assert_refused({1}, ("logits are not finite",), "kvrun", checkpoint, "--prompt", "Once", "--max-new-tokens", "3", *beams)

    def test_truncated_shard(self):
        shard = self.checkpoint / "model.safetensors"
        os.truncate(shard, shard.stat().st_size - 4096)
        self.assert_unusable("model.safetensors")

    def test_shard_of_a_few_bytes(self):
        os.truncate(self.checkpoint / "model.safetensors", 5)
        self.assert_unusable("model.safetensors")

    def test_missing_tensor(self):
        edit_tensors(self.checkpoint, lambda tensors: tensors.pop(K_PROJ))
        self.assert_unusable(K_PROJ)

    def test_wrong_shape(self):
        edit_tensors(self.checkpoint, lambda tensors: tensors[K_PROJ].__setitem__(1, [64, 32]))
        self.assert_unusable(K_PROJ, "32", "64")

    def test_unknown_architecture(self):
        edit_config(self.checkpoint, model_type="gpt_unknown")
        self.assert_unusable("gpt_unknown", "llama", "qwen2")
        edit_config(self.checkpoint, auto_map={"AutoConfig": "configuration_x.XConfig"})
        self.assert_unusable("gpt_unknown", "auto_map", "never run")

    def test_missing_and_broken_config(self):
        (self.checkpoint / "config.json").write_text('{"model_type": "llama",', encoding="utf-8")
        self.assert_unusable("config.json")
        (self.checkpoint / "config.json").unlink()
        self.assert_unusable("config.json")

    def test_config_that_contradicts_the_weights(self):
        edit_config(self.checkpoint, num_hidden_layers=6)
        self.assert_unusable("layers.5")

    def test_a_file_that_cannot_be_copied_is_known_before_the_work(self):
        (self.checkpoint / "generation_config.json").write_text("{bad")
        self.assert_refused({1}, ["generation_config.json"], "kvconvert", self.checkpoint, "--out", self.directory / "out", *FAST)
        self.assertFalse((self.directory / ".out.work").exists())

    def test_broken_tokenizer(self):
        (self.checkpoint / "tokenizer.json").write_text("[]", encoding="utf-8")
        self.assert_unusable("tokenizer.json")

    def test_tokens_beside_the_tokenizer_are_noted(self):
        def notes(name, content):
            (self.checkpoint / name).write_text(json.dumps(content), encoding="utf-8")
            errors = self.run_ok("kvrun", self.checkpoint, "--prompt", "Once", "--max-new-tokens", 1).stderr
            (self.checkpoint / name).unlink()
            return [line for line in errors.splitlines() if "save_pretrained" in line]

        extra, known = "<extra>", json.loads((self.checkpoint / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"][0]
        for name, content in (("tokenizer_config.json", {"added_tokens_decoder": {"600": {"content": extra}}}),
                              ("added_tokens.json", {extra: 600})):
            (note,) = notes(name, content)
            self.assertIn(f"{name}: has the token <extra> (600), which tokenizer.json does not have", note)
        self.assertEqual(notes("tokenizer_config.json", {"added_tokens_decoder": {str(known["id"]): {"content": known["content"]}}}), [])
        for content in ([], {"added_tokens_decoder": {"x": 1, "5": {}}}):
            self.assertEqual(notes("tokenizer_config.json", content), [])


class Texts(ProgramTest):
    def test_empty_calibration_text(self):
        for name, contents in (("empty.txt", ""), ("blank.jsonl", "\n\n"), ("no_text.jsonl", '{"other": "x"}\n')):
            text = self.directory / name
            text.write_text(contents, encoding="utf-8")
            self.assert_refused({1}, [name], "kvconvert", STORIES, "--out", self.directory / "out", *FAST,
                                "--calibration", text)
            self.assert_refused({1}, [name], "kvcalibrate", STORIES, "--out", self.directory / "out.h5",
                                "--calibration", text)

    def test_absent_calibration_text(self):
        self.assert_refused({1}, ["absent.txt"], "kvconvert", STORIES, "--out", self.directory / "out", *FAST,
                            "--calibration", self.directory / "absent.txt")

    def test_a_readme_that_is_none_is_left_out(self):
        for kind in ("pipe", "endless"):
            with self.subTest(kind):
                checkpoint = copy_checkpoint(STORIES, self.directory / kind)
                readme = checkpoint / "README.md"
                readme.unlink(missing_ok=True)
                os.mkfifo(readme) if kind == "pipe" else readme.symlink_to("/dev/zero")
                self.run_ok("kvconvert", checkpoint, "--out", self.directory / f"out-{kind}", *FAST, "--quiet")

    def test_links_out_of_the_checkpoint_are_not_published(self):
        secret = self.directory / "secret"
        secret.write_text("key", encoding="utf-8")
        revision = self.directory / "cache/snapshots/abc"
        blobs = self.directory / "cache/blobs"
        shutil.copytree(STORIES, revision)
        blobs.mkdir()
        (blobs / "0123").write_text("terms", encoding="utf-8")
        (revision / "NOTICE").symlink_to("../../blobs/0123")  # as the hub's cache has all files
        (revision / "LICENSE-extra").symlink_to(secret)
        elsewhere = self.directory / "elsewhere.jinja"
        elsewhere.write_text("{{ messages }}", encoding="utf-8")
        (revision / "chat_template.jinja").symlink_to(elsewhere)  # as a user may assemble a checkpoint
        (revision / "additional_chat_templates").mkdir()
        (revision / "additional_chat_templates/tool.jinja").symlink_to(secret)
        process = self.run_ok("kvconvert", revision, "--out", self.directory / "out", *FAST)
        self.assertRegex(process.stderr, "LICENSE-extra: leads to .*secret, outside the checkpoint")
        self.assertEqual((self.directory / "out/NOTICE").read_text(encoding="utf-8"), "terms")
        self.assertEqual((self.directory / "out/chat_template.jinja").read_text(encoding="utf-8"), "{{ messages }}")
        for path in (self.directory / "out").rglob("*"):
            self.assertTrue(path.is_dir() or path.read_bytes() != b"key", path)

    def test_a_pipe_is_no_text(self):
        elsewhere = tempfile.TemporaryDirectory()  # the test's own directory is read as a whole
        self.addCleanup(elsewhere.cleanup)
        pipe = os.path.join(elsewhere.name, "pipe.txt")
        os.mkfifo(pipe)
        self.assert_refused({1}, ["pipe.txt", "regular"], "kvcalibrate", STORIES, "--out", self.directory / "out.h5",
                            "--calibration", pipe)

    def test_sequences_beyond_the_context(self):
        for program in ("kvcalibrate", "kvfisher"):
            self.assert_refused({1}, ["513", "512", "--seq-len"], program, STORIES, "--out", self.directory / "out.h5",
                                "--seq-len", "513")

    def test_absent_prompt(self):
        self.assert_refused({2}, ["--prompt"], "kvrun", STORIES)
        self.assert_refused({1}, ["absent.txt"], "kvrun", STORIES, "--prompt-file", self.directory / "absent.txt")


class Outputs(ProgramTest):
    def test_existing_output_needs_force(self):
        out = self.directory / "out"
        out.mkdir()
        (out / "mine.txt").write_text("mine", encoding="utf-8")
        self.assert_refused({1}, ["out", "--force"], "kvconvert", STORIES, "--out", out, *FAST)
        self.run_ok("kvconvert", STORIES, "--out", out, *FAST, "--force")
        self.assertFalse((out / "mine.txt").exists())
        self.assertTrue((out / "config.json").exists())

    def test_missing_parent(self):
        self.assert_refused({1}, ["nowhere"], "kvconvert", STORIES, "--out", self.directory / "nowhere" / "out", *FAST)

    def test_a_checkpoint_is_never_its_own_output(self):
        checkpoint = copy_checkpoint(STORIES, self.directory / "checkpoint")
        self.assert_refused({1, 2}, ["checkpoint"], "kvconvert", checkpoint, "--out", checkpoint, *FAST)
        for out in (checkpoint, self.directory, checkpoint / "out"):
            self.assert_refused({1}, ["input", "--out"], "kvconvert", checkpoint, "--out", out, *FAST, "--force")

    def test_no_program_writes_into_its_inputs(self):
        checkpoint = copy_checkpoint(STORIES, self.directory / "checkpoint")
        weights = checkpoint / "model.safetensors"
        for program in ("kvcalibrate", "kvfisher"):
            self.assert_refused({1}, ["input"], program, checkpoint, "--out", weights, "--force")
        self.assert_refused({1}, ["input"], "kvrun", checkpoint, "--prompt", "Once", "--logits", weights, "--force")

    def test_an_output_is_never_a_text_or_the_work_directory(self):
        out = self.directory / "out"
        out.mkdir()
        text = out / "text.txt"
        text.write_text("Once upon a time", encoding="utf-8")
        for option in ("--calibration", "--validation-text"):
            self.assert_refused({1}, ["text.txt"], "kvconvert", STORIES, "--out", out, *FAST, "--force", option, text)
        for work in (out, out / "work"):
            self.assert_refused({2}, ["--work"], "kvconvert", STORIES, "--out", out, *FAST, "--force", "--work", work)

    def test_a_converted_checkpoint_is_refused_at_once(self):
        converted = copy_checkpoint(STORIES, self.directory / "converted")
        edit_config(converted, kvconvert={})
        work = self.directory / "work"
        self.assert_refused({1}, ["converted", "original"], "kvconvert", converted, "--out", self.directory / "out",
                            "--work", work, *FAST)

    def test_a_slash_at_the_end_changes_nothing(self):
        self.run_ok("kvconvert", STORIES, "--out", f"{self.directory}/out/", *FAST)
        self.assertEqual([path.name for path in self.directory.iterdir()], ["out"])

    def test_a_second_process_leaves_the_first_alone(self):
        out = self.directory / "out"
        arguments = (STORIES, "--out", out, *FAST)
        first = subprocess.Popen(command("kvconvert", *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True)
        while first.poll() is None and not (self.directory / ".out.work" / "tokens.h5").exists():
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)
        try:
            self.assert_refused({1}, ["another process"], "kvconvert", *arguments)
        finally:
            first.send_signal(signal.SIGCONT)
            _, errors = first.communicate(timeout=120)
        self.assertEqual(first.returncode, 0, errors)
        self.assertEqual([path.name for path in self.directory.iterdir()], ["out"])

    def test_artifacts_of_another_checkpoint(self):
        work = self.directory / "work"
        self.run_ok("kvconvert", STORIES, "--out", self.directory / "out", "--work", work, *FAST)
        self.assert_refused({1}, ["another checkpoint"], "kvexport", REFERENCE, "--conversion", work / "conversion",
                            "--out", self.directory / "exported")
        self.assert_refused({1}, ["out/conversion.h5: no such file", "--work"], "kvexport", STORIES, "--conversion",
                            self.directory / "out", "--out", self.directory / "exported")

    def test_outputs_that_cannot_be_written_are_known_before_the_work(self):
        out = self.directory / "out"
        out.mkdir()
        self.assert_refused({1}, ["out"], "kvrun", STORIES, "--prompt", "Once", "--logits", out, "--force")
        self.assert_refused({1}, ["out"], "kvvalidate", STORIES, STORIES, "--html", out, "--force")
        report = self.directory / "report"
        self.assert_refused({2}, ["--report", "--html"], "kvvalidate", STORIES, STORIES, "--report", report,
                            "--html", report)

    def test_models_that_cannot_be_compared(self):
        self.assert_refused({1}, ["vocab"], "kvvalidate", REFERENCE, STORIES)


class FullDisk(ProgramTest):
    """A disk of a few sizes, so that different stages meet its end."""

    KIBIBYTES = (64, 256, 700, 1300)

    def mount(self, kibibytes):
        disk = self.directory / f"disk{kibibytes}"
        disk.mkdir()
        mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", disk], capture_output=True).returncode == 0
        if mounted:
            self.addCleanup(subprocess.run, ["umount", disk], check=True)
        return disk, mounted

    def test_every_stage(self):
        for kibibytes in self.KIBIBYTES:
            disk, mounted = self.mount(kibibytes)
            limit = {}
            if not mounted:  # the next best: no file may grow beyond the size
                size = kibibytes << 8
                limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
                         "restore_signals": False}
            with self.subTest(kibibytes=kibibytes, mounted=mounted):
                self.assert_refused({1}, [str(disk)], "kvconvert", STORIES, "--out", disk / "out", *FAST,
                                    where=disk, **limit)

    def test_standard_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            process = subprocess.run(command("kvrun", STORIES, "--prompt", "Once", "--max-new-tokens", "4", "--quiet"),
                                     stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn("standard output", process.stderr)


if __name__ == "__main__":
    unittest.main()
