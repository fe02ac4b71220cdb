"""kvrun --chat: turns from a pipe and from --prompt, the checkpoint's own template, what is refused."""
import json
import os
import re
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from programs import STORIES, ProgramTest, command

TEMPLATE = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'critic' or m.content == 'bad' %}{{ raise_exception('No critics') }}{% endif %}"
            "{{ m.role[0] ~ ':' ~ (' ' if m.role != 'assistant') ~ m.content ~ '\n' }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}")


class Chat(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = self.directory / "model"
        shutil.copytree(STORIES, self.model)
        (self.model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")

    def chat(self, lines, *arguments, model=None, code=0, new_tokens=12):
        process = subprocess.run(command("kvrun", model or self.model, "--chat", "--max-new-tokens", str(new_tokens), *arguments), input=lines,
                                 capture_output=True, text=True, timeout=240)
        self.assertEqual(process.returncode, code, process.stderr)
        return process

    def continuation(self, text):
        """The ids that follow a text, without a chat."""
        ids = self.directory / "ids.json"
        prompt = self.directory / "prompt.txt"
        prompt.write_text(text, encoding="utf-8")
        # <s> of the rendered text and the one that kvrun adds: the chat must not add a second.
        ids.write_text(self.run_ok("kvrun", self.model, "--tokenize", prompt).stdout)
        process = self.run_ok("kvrun", self.model, "--ids", ids, "--max-new-tokens", "12", "--json")
        return json.loads(process.stdout)["tokens"]

    def test_one_turn_continues_the_rendered_text(self):
        answer = json.loads(self.chat("", "--prompt", "Hi", "--system", "Once", "--json").stdout)
        self.assertEqual(answer["tokens"], self.continuation("s: Once\nu: Hi\na:"))
        self.assertEqual(answer["read_tokens"], answer["prompt_tokens"])
        self.assertEqual(self.chat("", "--prompt", "Hi", "--system", "Once").stdout, answer["text"] + "\n")

    def test_later_turns_read_what_is_new_and_answer_as_if_all_was_read(self):
        first, second = map(json.loads, self.chat("Hi\n\nAnd you?\n/exit\nnever\n", "--json").stdout.splitlines())
        self.assertEqual(first["tokens"], self.continuation("u: Hi\na:"))
        self.assertEqual(second["tokens"], self.continuation("u: Hi\na:" + first["text"] + "\nu: And you?\na:"))
        self.assertEqual(second["kv"]["tokens"], second["prompt_tokens"] + len(second["tokens"]) - 1)  # a later turn would read the last
        self.assertLess(second["read_tokens"], second["prompt_tokens"] - first["prompt_tokens"])

    def test_input_that_cannot_be_read(self):
        directory = os.open(self.directory, os.O_RDONLY)
        self.addCleanup(os.close, directory)
        process = subprocess.run(command("kvrun", self.model, "--chat"), stdin=directory, capture_output=True, text=True, timeout=240)
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn("kvrun: error: standard input: cannot be read: Is a directory", process.stderr)

    def test_turns_draw_numbers_of_their_own(self):
        """Where a turn sees itself alone, the first draws as its prompt does; a conversation repeats with its seed."""
        last = self.directory / "last.jinja"
        last.write_text("{{ bos_token }}u: {{ messages[-1].content }}", encoding="utf-8")
        draw = ("--chat-template", last, "--temperature", "1", "--seed", "3", "--ignore-eos", "--json")
        answers = [json.loads(line)["tokens"] for line in self.chat("Hi\nHi\nHi\n", *draw).stdout.splitlines()]
        self.assertEqual(len(set(map(tuple, answers))), 3)
        self.assertEqual([json.loads(line)["tokens"] for line in self.chat("Hi\nHi\nHi\n", *draw).stdout.splitlines()], answers)
        self.assertEqual(json.loads(self.chat("", "--prompt", "Hi", *draw).stdout)["tokens"], answers[0])

    def test_a_conversation_beyond_the_models_positions_is_warned_of_once(self):
        long = " ".join(["word"] * 300)
        warned = self.chat(f"{long}\n{long}\nHi\n", "--json")
        self.assertEqual(warned.stderr.count("text beyond them is unreliable"), 1)
        self.assertEqual(self.chat("Hi\n", "--json").stderr, "")

    def test_an_answer_may_fill_the_memory(self):
        prompt = json.loads(self.chat("", "--prompt", "Hi", "--json").stdout)["prompt_tokens"]
        page, bytes_per_token = 16, 1280
        limits = ("--ignore-eos", "--memory", page * bytes_per_token, "--page-tokens", page)
        answer = self.chat("", "--prompt", "Hi", "--json", *map(str, limits), new_tokens=page + 1 - prompt)
        self.assertEqual(len(json.loads(answer.stdout)["tokens"]), page + 1 - prompt)
        self.chat("", "--prompt", "Hi", *map(str, limits), new_tokens=page + 2 - prompt, code=1)

    def test_ends_at_any_of_the_end_tokens(self):
        free = json.loads(self.chat("", "--prompt", "Hi", "--json").stdout)["tokens"]
        config = self.model / "generation_config.json"
        config.write_text(json.dumps({"eos_token_id": [2, free[4]]}), encoding="ascii")
        stopped = json.loads(self.chat("", "--prompt", "Hi", "--json").stdout)["tokens"]
        self.assertEqual(stopped, free[:free.index(free[4])])
        self.assertEqual(json.loads(self.chat("", "--prompt", "Hi", "--json", "--ignore-eos").stdout)["tokens"], free)

    def test_another_template_and_its_arguments(self):
        other = self.directory / "other.jinja"
        other.write_text("{{ bos_token }}{{ start }} {{ messages[-1].content }}", encoding="utf-8")
        answer = json.loads(self.chat("", "--prompt", "a time", "--chat-template", other, "--chat-arguments", '{"start": "Once upon"}',
                                      "--json").stdout)
        self.assertEqual(answer["tokens"], self.continuation("Once upon a time"))

    def test_refusals(self):
        self.assertIn("--chat-template", self.chat("Hi\n", model=STORIES, code=1).stderr)
        self.assertIn("No critics", self.chat("bad\n", code=1).stderr)
        self.assertIn("need --chat", self.run_refused("--prompt", "x", "--system", "y"))
        (self.model / "chat_template.jinja").write_text("\n{% import 'x' as y %}", encoding="utf-8")
        self.assertIn("line 2", self.chat("Hi\n", code=1).stderr)

    def run_refused(self, *arguments):
        process = subprocess.run(command("kvrun", self.model, *arguments), capture_output=True, text=True, timeout=240)
        self.assertEqual(process.returncode, 2, process.stderr)
        return process.stderr

    def asked(self, *arguments):
        """A conversation through pipes whose first question was asked."""
        process = subprocess.Popen(command("kvrun", self.model, "--chat", *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        process.stdin.write(b"Once\n")
        process.stdin.flush()
        return process

    def test_an_interrupt_ends_the_answer_and_not_the_conversation(self):
        process = self.asked("--max-new-tokens", "100000", "--ignore-eos", "--force")
        self.assertTrue(process.stdout.read(1))
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(b"/exit\n", timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertGreaterEqual(rest.count(b"\n"), 1)

    def test_a_signal_to_end_prints_the_answer_so_far(self):
        process = subprocess.Popen(command("kvrun", self.model, "--chat", "--max-new-tokens", "100000", "--ignore-eos", "--json", "--force",
                                           "--prompt", "Once"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.assertGreater(len(self.ended_result(process)["tokens"]), 0)

    def test_a_signal_at_the_prompt_ends_with_130(self):
        process = self.asked("--max-new-tokens", "1", "--json")
        self.assertTrue(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 130)
        process.communicate()

    def test_a_signal_while_the_model_is_loaded_ends_with_130(self):
        process = subprocess.Popen(command("kvrun", self.model, "--chat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        status = Path(f"/proc/{process.pid}/status")
        while not int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) >> (signal.SIGTERM - 1) & 1:
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 130)
        process.communicate()


if __name__ == "__main__":
    unittest.main()
