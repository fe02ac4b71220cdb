"""What the tests of the programs share: running them, and checkpoints that are wrong in one way."""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

BIN = pathlib.Path(os.environ["KVC_BIN_DIR"])
DATA = pathlib.Path(os.environ["KVC_TEST_DATA"])
STORIES = DATA / "stories260K-hf"
REFERENCE = DATA / "reference-llama"
PROGRAMS = ("kvcalibrate", "kvfisher", "kvconvert", "kvexport", "kvvalidate", "kvrun")
# A conversion of stories260K that takes seconds.
FAST = ("--group", "5", "--rank", "0.7", "--num-sequences", "8", "--seq-len", "128", "--no-validate")


def command(program, *arguments):
    return [str(BIN / program), *map(str, arguments)]


def run(program, *arguments, **options):
    """A finished process; its output as text."""
    options.setdefault("timeout", 240)
    return subprocess.run(command(program, *arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          **options)


def listing(directory):
    """{relative path: digest of the contents, or None for a directory} of everything below."""
    return {str(path.relative_to(directory)): None if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(directory.rglob("*"))}


class ProgramTest(unittest.TestCase):
    """A test with a directory of its own."""

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvc-cli-"))
        self.addCleanup(shutil.rmtree, self.directory)

    def run_ok(self, program, *arguments, **options):
        process = run(program, *arguments, **options)
        self.assertEqual(process.returncode, 0, f"{program} {arguments}:\n{process.stderr}")
        return process

    def ended_result(self, process):
        """The JSON that a program prints when it is told to end in the midst of its work."""
        working = 1.5  # seconds of processor time, far behind its start however busy the machine is
        while self.processor_seconds(process) < working:
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 130, errors)
        result = json.loads(output)
        self.assertTrue(result["interrupted"])
        return result

    @staticmethod
    def processor_seconds(process):
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")  # user and system

    def assert_refused(self, codes, words, program, *arguments, where=None, **options):
        """One message on stderr that has all `words`, an exit code of `codes`, and nothing left behind. Returns the message."""
        where = where or self.directory
        before = listing(where)
        process = run(program, *arguments, "--quiet", **options)
        text = f"{program} {arguments}: {process.returncode}\n{process.stderr}"
        self.assertIn(process.returncode, codes, text)
        self.assertTrue(process.stderr.startswith(f"{program}: error: "), text)
        self.assertEqual(process.stderr.count(f"{program}: error: "), 1, text)
        self.assertEqual(process.stdout, "", text)
        for word in words:
            self.assertIn(word, process.stderr, text)
        self.assertEqual(listing(where), before, f"{text}\nthings were left behind or changed")
        return process.stderr


def copy_checkpoint(source, target):
    shutil.copytree(source, target)
    return target


def edit_config(checkpoint, **changes):
    path = checkpoint / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.update(changes)
    path.write_text(json.dumps(config), encoding="utf-8")


def edit_tensors(checkpoint, edit):
    """Rewrites model.safetensors after `edit({name: [dtype, shape, bytes]})`."""
    path = checkpoint / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    tensors = {name: [entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]]
               for name, entry in header.items() if name != "__metadata__"}
    edit(tensors)
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
