"""lm-evaluation-harness loads converted directories with their codes, and generated tasks judge them as the original."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["KVC_SOURCE_DIR"])
sys.path.insert(0, str(ROOT / "bench" / "engines"))

from environments import InstallError, engine_python  # noqa: E402
from check_lm_eval import PACKAGES  # noqa: E402
from lm_eval_tasks import recall_documents, write_tasks  # noqa: E402

from conversions import HELD_OUT, REFERENCE, convert  # noqa: E402


def served(kept_ratio, *options):
    return convert(REFERENCE, "--kept-ratio", kept_ratio, "--form", "rotated", "--num-sequences", "10", "--seq-len", "1024",
                   *options, exact=("--for", "transformers"))


class TasksTest(unittest.TestCase):
    def test_a_seed_gives_the_same_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            def written(seed):
                write_tasks(pathlib.Path(folder), HELD_OUT.read_text(), num_recall=5, num_stories=2, seed=seed)
                return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}

            first = written(3)
            self.assertEqual(first, written(3))
            self.assertNotEqual(first["recall.jsonl"], written(4)["recall.jsonl"])
            self.assertEqual(len(first["recall.jsonl"].splitlines()), 5)
            self.assertEqual(len(first["stories.jsonl"].splitlines()), 2)

    def test_answers_are_in_the_text(self):
        for document in recall_documents(20, seed=0):
            what = document["text"].rsplit("Recall: ", 1)[1].split(", ")[-1]
            self.assertIn(f"{what} {document['answer']}", document["text"].split("\n")[0])
            self.assertEqual(document["choices"][document["right"]], document["answer"])
            self.assertEqual(len(set(document["choices"])), 4)


class HarnessTest(unittest.TestCase):
    def evaluate(self, converted, *options):
        report = self.folder / "report.json"
        command = [sys.executable, ROOT / "bench" / "engines" / "check_lm_eval.py", REFERENCE, converted, "--recall", 12,
                   "--stories", 3, "--json", report, *options]
        process = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stderr)
        return json.loads(report.read_text())

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvc-lm-eval-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_codes_of_a_quarter_keep_the_answers(self):
        found = self.evaluate(served("0.25"))
        self.assertEqual(found["original"].keys(), found["converted"].keys())
        for task in ("kvc_recall exact_match", "kvc_choice acc"):
            self.assertGreater(found["original"][task][0], 0.9)
            self.assertGreater(found["converted"][task][0], 0.9)
        ratio = found["converted"]["kvc_stories byte_perplexity"][0] / found["original"]["kvc_stories byte_perplexity"][0]
        self.assertAlmostEqual(ratio, 1, delta=0.02)
        self.assertNotEqual(ratio, 1)  # the codes were read

    def test_a_cache_that_is_too_small_costs_perplexity(self):
        found = self.evaluate(served("0.05", "--force"), "--tasks", "kvc_stories")
        stories = {name: values["kvc_stories byte_perplexity"][0] for name, values in found.items()}
        self.assertGreater(stories["converted"], 1.04 * stories["original"])


if __name__ == "__main__":
    try:
        engine_python("lm_eval", PACKAGES)
    except InstallError as error:
        print(f"lm-evaluation-harness cannot be installed: {error}", file=sys.stderr)
        sys.exit(1 if os.environ.get("KVC_REQUIRE_PEERS") == "1" else 77)
    unittest.main()
