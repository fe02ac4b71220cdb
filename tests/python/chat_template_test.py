"""Chat templates equal transformers' Jinja2: every feature and whole templates over many conversations."""
import datetime
import json
import os
import subprocess
import unittest
from pathlib import Path

import chat_cases
from transformers.utils import chat_template_utils

SOURCE = Path(os.environ.get("KVC_SOURCE_DIR", Path(__file__).resolve().parents[2]))
PROGRAM = os.environ.get("KVC_RENDER_CHAT") or Path(os.environ["KVC_BIN_DIR"]).parent / "tests" / "render_chat"
TEMPLATES = Path(os.environ.get("KVC_CHAT_TEMPLATES", SOURCE / "tests" / "data" / "chat"))


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(chat_cases.NOW, tz)


def native(cases):
    lines = "".join(json.dumps({"template": template, "variables": values, "now": chat_cases.NOW}) + "\n" for template, values in cases)
    result = subprocess.run([PROGRAM], input=lines, capture_output=True, encoding="utf-8", check=True)
    return [json.loads(line) for line in result.stdout.split("\n")[:-1]]


def expected(template, values):
    """The text, or None where Jinja2 fails."""
    try:
        return chat_template_utils._compile_jinja_template(template).render(**values)
    except Exception:  # whatever Python makes of a bad template
        return None


class ChatTemplates(unittest.TestCase):
    def setUp(self):
        self.clock = chat_template_utils.datetime
        chat_template_utils.datetime = FixedClock

    def tearDown(self):
        chat_template_utils.datetime = self.clock

    def compare(self, cases):
        rendered = failed = 0
        for (template, values), found in zip(cases, native(cases), strict=True):
            wanted = expected(template, values)
            with self.subTest(template=template[:200], values=values):
                self.assertEqual(found.get("text"), wanted, found)
                rendered += wanted is not None
                failed += wanted is None
        return rendered, failed

    def test_features(self):
        values = next(chat_cases.variables())
        rendered, failed = self.compare([(template, values) for template in chat_cases.FEATURES])
        self.assertGreater(rendered, 50)
        self.assertGreater(failed, 10)

    def test_whole_templates(self):
        paths = sorted(TEMPLATES.glob("*.jinja"))
        self.assertGreater(len(paths), 10)
        total = 0
        for path in paths:
            template = path.read_text(encoding="utf-8")
            rendered, failed = self.compare([(template, values) for values in chat_cases.variables()])
            self.assertGreater(rendered, 0, path)
            total += rendered + failed
        print(f"{len(paths)} templates, {total} conversations")


if __name__ == "__main__":
    unittest.main()
