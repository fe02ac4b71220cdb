#!/usr/bin/env python3
"""`vllm serve` with codes under load, and after it was killed.

Clients on this machine send prompts for KVC_SERVER_SECONDS (120 by default). Every answer is compared with that of an
engine without a server, and the memory of the server's processes is watched. Runs in an environment with vllm and the
plugin.
"""

import contextlib
import functools
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import psutil
from transformers import AutoTokenizer
from vllm_checkpoints import LENGTHS, REFERENCE, begun, convert, heldout
from vllm_serving_test import run

SECONDS = int(os.environ.get("KVC_SERVER_SECONDS", "120"))
CLIENTS = 6
NEW_TOKENS = 24
CACHE_BYTES = 16 << 20  # about 21,800 tokens: the prompts do not all fit, running sequences always do
MOST_GROWTH = 16 << 20  # bytes, in the second half of the time
FOLDER = tempfile.TemporaryDirectory()
ROOT = Path(FOLDER.name)
MODEL = "converted"


@functools.cache
def checkpoint() -> Path:
    return convert(ROOT / "converted", "--form", "rotated")


@functools.cache
def prompts() -> list[list[int]]:
    """96 prompts of 7 to 511 tokens, in groups of four that begin alike."""
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    tokens = heldout(tokenizer)
    texts = []
    for i in range(2 * len(LENGTHS)):
        length, start = LENGTHS[i % len(LENGTHS)], 150 * i
        for ending in range(4):
            own = tokens[5 * ending : 5 * ending + 5]
            texts.append(begun(tokenizer, tokens[start : start + length - 5] + own))
    return texts


@functools.cache
def expected() -> list[list[int]]:
    path = ROOT / "prompts.json"
    path.write_text(json.dumps({"prompts": prompts(), "new_tokens": NEW_TOKENS}))
    return run(checkpoint(), f"file:{path}")[f"file:{path}"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """`vllm serve` on the loopback interface."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.log = open(ROOT / "server.log", "ab")
        options = {
            "host": "127.0.0.1",
            "port": port,
            "served-model-name": MODEL,
            "dtype": "float32",
            "max-model-len": 1024,
            "max-num-seqs": 4,
            "kv-cache-memory-bytes": CACHE_BYTES,
        }
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(checkpoint()), "--enforce-eager"]
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        environment = {k: v for k, v in os.environ.items() if k != "VLLM_CPU_KVCACHE_SPACE"}
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)

    def wait_until_ready(self, seconds: float = 240) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.printed()}")
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
                with contextlib.suppress(OSError):
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        return
            time.sleep(0.5)
        raise AssertionError(f"not ready after {seconds} s:\n{self.printed()}")

    def printed(self) -> str:
        return (ROOT / "server.log").read_text(errors="replace")[-4000:]

    def processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def resident_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self.processes())

    def kill(self) -> None:
        """kill -9 of every process of the server."""
        for process in self.processes():
            process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=30)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()


def answer(port: int, prompt: list[int]) -> list[int]:
    """The server's greedy continuation."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body | {"return_token_ids": True}), headers)
        response = connection.getresponse()
        text = response.read()
    if response.status != 200:
        raise AssertionError(f"status {response.status}: {text[:500]!r}")
    return json.loads(text)["choices"][0]["token_ids"]


class Load:
    """Clients that send random prompts until `seconds` have passed, and count wrong answers."""

    def __init__(self, port: int, seconds: float) -> None:
        self.answered, self.wrong = 0, []
        self.errors: list[BaseException] = []
        self._end, self._port = time.monotonic() + seconds, port
        self._lock = threading.Lock()
        threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        draw = random.Random(seed)
        try:
            while time.monotonic() < self._end:
                i = draw.randrange(len(prompts()))
                found = answer(self._port, prompts()[i])
                with self._lock:
                    self.answered += 1
                    if found != expected()[i]:
                        self.wrong.append(i)
        except BaseException as error:  # noqa: BLE001: reported by the test
            self.errors.append(error)


class Serve(unittest.TestCase):
    def check(self, load: Load) -> None:
        self.assertEqual([str(error) for error in load.errors], [])
        self.assertEqual(load.wrong, [])
        self.assertGreater(load.answered, 0)

    def test_load_and_kill(self) -> None:
        expected()
        port = free_port()
        server = Server(port)
        try:
            server.wait_until_ready()
            resident = [server.resident_bytes()]
            for _ in range(4):
                load = Load(port, SECONDS / 4)
                self.check(load)
                resident.append(server.resident_bytes())
                print(f"{load.answered} answers in {SECONDS / 4:.0f} s, {resident[-1] / 2**20:.1f} MiB resident")
            # Memory grows at first, until every part of the engine has run.
            self.assertLess(resident[-1] - resident[2], MOST_GROWTH)
            processes = server.processes()
            server.kill()
            _, alive = psutil.wait_procs(processes, timeout=30)
            self.assertEqual(alive, [])
        finally:
            if server.process.poll() is None:
                server.stop()
        again = Server(port)
        try:
            again.wait_until_ready()
            self.check(Load(port, 10))
        finally:
            again.stop()


if __name__ == "__main__":
    try:
        unittest.main()
    finally:
        FOLDER.cleanup()
