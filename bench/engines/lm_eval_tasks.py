"""Tasks for lm-evaluation-harness that need no network: a YAML file and its data for each of three kinds of request.

kvc_recall    (generate_until)          names the number of one of 20 facts; exact match
kvc_choice    (multiple_choice)         the same facts, the right number among four; accuracy
kvc_stories   (loglikelihood_rolling)   held-out stories, joined to texts of about 3,000 characters; perplexity per word and byte

The facts are written as the reference checkpoint has learnt to recall them. Equal seeds give equal tasks.
"""

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recall_facts import COLOURS, THINGS  # noqa: E402

STORY_CHARACTERS = 3000
SEPARATOR = "<|endoftext|>"

COMMON = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
metadata: {{version: 1}}
"""
TASKS = {
    "kvc_recall": ("generate_until", r"""doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: [","], max_gen_toks: 6, do_sample: false}
filter_list:
  - {name: number, filter: [{function: regex, regex_pattern: "(\\d+)"}, {function: take_first}]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""),
    "kvc_choice": ("multiple_choice", """doc_to_text: "{{text}}"
doc_to_choice: choices
doc_to_target: right
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""),
    "kvc_stories": ("loglikelihood_rolling", """doc_to_text: ""
doc_to_target: "{{story}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}]
"""),
}


def recall_documents(count, seed):
    """Lists of 20 facts, of which one is asked for after up to three others were named."""
    for index in range(count):
        draw = random.Random(f"{seed} {index}")
        facts = [(f"{draw.choice(COLOURS)} {thing}", str(draw.randint(10, 99))) for thing in draw.sample(THINGS, len(THINGS))]
        *named, (what, answer) = draw.sample(facts, draw.randint(1, 4))
        text = "Remember: " + ", ".join(map(" ".join, facts)) + ".\nRecall: " + "".join(f"{a} {b}, " for a, b in named) + what
        others = [number for number in dict.fromkeys(number for _, number in facts) if number != answer]
        choices = draw.sample([answer, *draw.sample(others, 3)], 4)
        yield {"text": text, "answer": answer, "choices": choices, "right": choices.index(answer)}


def story_documents(text, count):
    """The first `count` texts of whole stories."""
    joined = ""
    for story in text.split(SEPARATOR):
        joined += story.strip() + "\n"
        if len(joined) >= STORY_CHARACTERS and count > 0:
            yield {"story": joined}
            joined, count = "", count - 1


def write_tasks(folder, text, num_recall, num_stories, seed=0):
    """Writes all tasks to `folder`, which --include_path then names."""
    documents = {"recall": recall_documents(num_recall, seed), "stories": story_documents(text, num_stories)}
    for name, rows in documents.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name, (kind, body) in TASKS.items():
        data = folder / ("stories.jsonl" if name == "kvc_stories" else "recall.jsonl")
        (folder / f"{name}.yaml").write_text(COMMON.format(name=name, data=data, kind=kind) + body, encoding="utf-8")
