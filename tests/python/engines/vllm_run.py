#!/usr/bin/env python3
"""Runs one vLLM engine on the tests' prompts: vllm_run.py OUT CHECKPOINT SETTINGS TASKS

SETTINGS: JSON, arguments of vllm.LLM. OUT: JSON, a result per task, `capacity` (tokens that the cache holds), `block` (tokens
of a block), `hits` (prompt tokens found in the prefix cache) and `preemptions`. TASKS are words of:

tokens        greedy, 48 tokens
again         the same with a filled prefix cache
long          greedy, 300 tokens
transformers  as `tokens`, by transformers in the same process
file:PATH     greedy, of a JSON file with `prompts`, lists of token ids, and `new_tokens`
nll           mean negative log-likelihood of held-out text
reload        what the engine says to new weights, of the checkpoint's and of kernels' format
alike         log-probabilities of 16 tokens behind one prompt: of two of three requests at once, and of a later one; the
              engine runs in this process, so that all three are in one step
"""

import json
import sys

import torch
from vllm import LLM, SamplingParams
from vllm_checkpoints import begun, heldout, prompts

CACHE_BYTES = 1 << 28
WINDOW, WINDOWS = 800, 6  # tokens of a text, texts


def greedy(engine: LLM, tokens: int, texts: list[dict] | None = None) -> list[list[int]]:
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    outputs = engine.generate(texts or prompts(engine.get_tokenizer()), sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def greedy_of_file(engine: LLM, path: str) -> list[list[int]]:
    with open(path) as file:
        asked = json.load(file)
    return greedy(engine, asked["new_tokens"], [{"prompt_token_ids": text} for text in asked["prompts"]])


def transformers_greedy(engine: LLM, checkpoint: str, tokens: int) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=engine.llm_engine.vllm_config.model_config.dtype)
    results = []
    for text in prompts(engine.get_tokenizer()):
        ids = torch.tensor([text["prompt_token_ids"]])
        output = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        results.append(output[0, ids.shape[1] :].tolist())
    return results


def nll(engine: LLM) -> float:
    tokens = heldout(engine.get_tokenizer())
    texts = [begun(engine.get_tokenizer(), tokens[WINDOW * i : WINDOW * (i + 1)]) for i in range(WINDOWS)]
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    outputs = engine.generate([{"prompt_token_ids": text} for text in texts], sampling, use_tqdm=False)
    losses = [-o.prompt_logprobs[i][text[i]].logprob for o, text in zip(outputs, texts) for i in range(1, WINDOW)]
    return sum(losses) / len(losses)


def alike(engine: LLM) -> list[list[float]]:
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=1)
    text = prompts(engine.get_tokenizer())[9]
    outputs = [output.outputs[0] for texts in ([text] * 3, [text]) for output in engine.generate(texts, sampling, use_tqdm=False)]
    return [[chosen[token].logprob for chosen, token in zip(o.logprobs, o.token_ids)] for o in outputs[1:]]


def reload(engine: LLM) -> list[str]:
    said = []
    for settings in ({}, {"is_checkpoint_format": False}):
        try:
            engine.collective_rpc("reload_weights", kwargs=settings)
            said.append("")
        except Exception as error:  # of the type that the engine's process makes it
            said.append(str(error))
    return said


def metric(engine: LLM, name: str) -> float:
    return sum(m.value for m in engine.get_metrics() if m.name == name)


def main() -> None:
    out, checkpoint, settings, *tasks = sys.argv[1:]
    defaults = {"max_model_len": 1024, "max_num_seqs": 8, "enforce_eager": True, "dtype": "float32"}
    defaults |= {"kv_cache_memory_bytes": CACHE_BYTES, "disable_log_stats": False}
    engine = LLM(checkpoint, **{**defaults, **json.loads(settings)})
    run = {"tokens": lambda: greedy(engine, 48), "long": lambda: greedy(engine, 300), "nll": lambda: nll(engine)}
    run["alike"] = lambda: alike(engine)
    run["reload"] = lambda: reload(engine)
    run["again"] = run["tokens"]
    run["transformers"] = lambda: transformers_greedy(engine, checkpoint, 48)
    result = {}
    for task in tasks:
        word, _, path = task.partition(":")
        result[task] = greedy_of_file(engine, path) if word == "file" else run[word]()
    cache = engine.llm_engine.vllm_config.cache_config
    result["block"] = cache.block_size
    result["capacity"] = cache.num_gpu_blocks * cache.block_size
    result["hits"] = metric(engine, "vllm:prefix_cache_hits")
    result["preemptions"] = metric(engine, "vllm:num_preemptions")
    with open(out, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
