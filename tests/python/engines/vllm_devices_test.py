#!/usr/bin/env python3
"""vLLM with the ops of a GPU, which run in the emulator (vllm_device_run.py), beside those of the CPU: bfloat16."""

import json
import os
import unittest
from pathlib import Path

import vllm_serving_test as serving

EMULATED = Path(os.environ["KVC_BIN_DIR"]).parent / "lib/libkvconvert_ops_emulated.so"
TEXTS = [[1, *range(20, 420, 10)], [1, 5, 6, 7, 8], [1, *range(99, 68, -1)], [1, *range(20, 420, 10), *range(400, 500, 2)]]
NEW_TOKENS = 8


def generated(checkpoint, emulated, *tasks, **settings):
    path = serving.ROOT / "texts.json"
    path.write_text(json.dumps({"prompts": TEXTS, "new_tokens": NEW_TOKENS}))
    settings = {"dtype": "bfloat16", "max_model_len": 256, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 23, **settings}
    options = {"script": "vllm_device_run.py", "env": {"KVCONVERT_OPS": str(EMULATED)}} if emulated else {}
    result = serving.run(checkpoint, f"file:{path}", *tasks, **options, **settings)
    return result[f"file:{path}"], result


class Devices(unittest.TestCase):
    def check(self, own, expected):
        """Sums of another order, and keys' weights as another kind of number, turn near ties of bfloat16 alone."""
        equal = sum(a == b for pair in zip(own, expected) for a, b in zip(*pair))
        self.assertGreaterEqual(equal, 0.75 * NEW_TOKENS * len(TEXTS), (own, expected))

    def test_tokens_are_those_of_the_cpu(self):
        expected, host = generated(serving.head(), False)
        own, device = generated(serving.head(), True)
        self.check(own, expected)
        self.assertEqual(device["capacity"], host["capacity"])
        # In pieces of a prompt; pages that the third text shares with the first are found.
        pieces, device = generated(serving.head(), True, max_num_batched_tokens=48, block_size=32, max_num_seqs=2)
        self.check(pieces, expected)
        self.assertGreater(device["hits"], 0)

    def test_groups_of_layers(self):
        self.check(generated(serving.group(), True)[0], generated(serving.group(), False)[0])


if __name__ == "__main__":
    unittest.main()
