"""vLLM; with the package kvconvert also with a cache of codes. scripts/with_vllm.sh starts it."""

import numpy
import vllm

from model import GIB, Model

COMMON = {"max_model_len": 1024, "max_num_seqs": 8, "enforce_eager": True, "max_logprobs": -1}


def _prompt(ids):
    return [{"prompt_token_ids": list(ids)}]


class Vllm(Model):
    """vLLM gives log-probabilities: logits but for a constant in each row."""

    def __init__(self, checkpoint):
        self._model = vllm.LLM(str(checkpoint), dtype="float32", kv_cache_memory_bytes=1 << 28, enable_prefix_caching=False, **COMMON)

    def logits(self, ids):
        sampling = vllm.SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1)
        # Those behind the last token come with one token more; its own logits are not asked for.
        output = self._model.generate(_prompt([*ids, ids[0]]), sampling, use_tqdm=False)[0]
        rows = numpy.empty((len(ids), self._model.model_config.get_vocab_size()), numpy.float32)
        for row, found in zip(rows, output.prompt_logprobs[1:], strict=True):
            for token, entry in found.items():
                row[token] = entry.logprob
        return rows

    def greedy(self, ids, count):
        sampling = vllm.SamplingParams(temperature=0, max_tokens=count)
        return list(self._model.generate(_prompt(ids), sampling, use_tqdm=False)[0].outputs[0].token_ids)


def load(checkpoint, scratch):
    return Vllm(checkpoint)


def tokens_per_gib(checkpoint, ids):
    engine = vllm.LLM(str(checkpoint), kv_cache_memory_bytes=GIB, **COMMON)
    cache = engine.llm_engine.vllm_config.cache_config
    return cache.num_gpu_blocks * cache.block_size
