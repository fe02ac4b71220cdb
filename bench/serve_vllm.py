#!/usr/bin/env python3
"""What vLLM gains from codes: decode throughput, and requests per minute where memory is short.

serve_vllm.py CHECKPOINT CONVERTED [--concurrent 8 32] [--prompt 896] [--generate 100] [--rounds 3]
              [--short-mib 64] [--requests 96] [--short-generate 64] [--conversations 64] [--turns 4] [--eager]

Run it with scripts/with_vllm.sh, or in an environment with vllm and kvconvert. One engine per checkpoint runs in a process of its own; they take turns, so
that both meet the same load of the machine. Decode throughput is that of the tokens after each request's first, because
prompts come from the prefix cache. Where memory is short, requests are sent at once, and then conversations take turns in
random order: a turn's prompt is what was said so far, which the prefix cache may still hold, and a question. Prints medians over the rounds and the median ratio of a round.
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import time
from typing import Any

MIB = 1 << 20
LONGEST = 1024  # tokens of a request, its answer included
QUESTION = 32  # tokens that a turn of a conversation adds, and those of its answer


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("converted")
    parser.add_argument("--concurrent", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--prompt", type=int, default=896, help="tokens of a prompt")
    parser.add_argument("--generate", type=int, default=100, help="tokens that a request generates")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short-mib", type=int, default=64, help="MiB of cache where memory is short, 0 to skip")
    parser.add_argument("--requests", type=int, default=96, help="requests that are sent at once where memory is short")
    parser.add_argument("--short-generate", type=int, default=64, help="tokens that each of them generates")
    parser.add_argument("--conversations", type=int, default=64, help="conversations where memory is short, 0 to skip")
    parser.add_argument("--turns", type=int, default=4, help="turns of each that are timed, after its first")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    return parser.parse_args()


def prompts(count: int, length: int, vocab_size: int, seed: int) -> list[dict[str, list[int]]]:
    draw = random.Random(seed)
    return [{"prompt_token_ids": [draw.randrange(3, vocab_size) for _ in range(length)]} for _ in range(count)]


def serve(pipe: Any, settings: dict[str, Any]) -> None:
    """Answers (prompts, tokens to generate) with (seconds, tokens of each) until it gets None."""
    from vllm import LLM, SamplingParams

    engine = LLM(**settings)
    pipe.send(engine.llm_engine.vllm_config.cache_config.num_gpu_blocks)
    while (request := pipe.recv()) is not None:
        batch, tokens = request
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        start = time.perf_counter()
        outputs = engine.generate(batch, sampling, use_tqdm=False)
        pipe.send((time.perf_counter() - start, [list(o.outputs[0].token_ids) for o in outputs]))
    engine.llm_engine.engine_core.shutdown()


class Engine:
    """An engine in a process of its own."""

    def __init__(self, model: str, cache_bytes: int, max_num_seqs: int, eager: bool) -> None:
        settings = {
            "model": model,
            "max_num_seqs": max_num_seqs,
            "kv_cache_memory_bytes": cache_bytes,
            "enforce_eager": eager,
            "max_model_len": LONGEST,
            "seed": 0,
        }
        spawn = multiprocessing.get_context("spawn")
        self.pipe, there = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(there, settings))
        self.process.start()
        there.close()  # so that an engine that ends is an error here
        self.blocks = self.pipe.recv()

    def run(self, batch: list[dict], tokens: int) -> tuple[float, list[list[int]]]:
        self.pipe.send((batch, tokens))
        return self.pipe.recv()

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join(timeout=30)
        if self.process.is_alive():
            self.process.terminate()


def decode_rate(engine: Engine, batch: list[dict], tokens: int) -> float:
    """Tokens per second after each request's first token."""
    engine.run(batch, 1)  # prompts enter the prefix cache
    first, _ = engine.run(batch, 1)
    seconds, _ = engine.run(batch, tokens)
    return len(batch) * (tokens - 1) / (seconds - first)


class Conversations:
    """Texts that grow by a question of QUESTION tokens and an answer of as many in every turn."""

    def __init__(self, count: int, turns: int, vocab_size: int, seed: int) -> None:
        self._draw, self._vocab_size = random.Random(seed), vocab_size
        self._texts = [p["prompt_token_ids"] for p in prompts(count, LONGEST - 2 * QUESTION * (turns + 1), vocab_size, seed)]

    def turn(self, engine: Engine) -> float:
        """Seconds until all are answered."""
        order = self._draw.sample(range(len(self._texts)), len(self._texts))
        for i in order:
            self._texts[i] += prompts(1, QUESTION, self._vocab_size, self._draw.randrange(1 << 30))[0]["prompt_token_ids"]
        seconds, answers = engine.run([{"prompt_token_ids": self._texts[i]} for i in order], QUESTION)
        for i, answer in zip(order, answers, strict=True):
            self._texts[i] += answer
        return seconds


def returning_rate(engine: Engine, options: argparse.Namespace, vocab_size: int, seed: int) -> float:
    """Answers per minute in the turns after the first."""
    conversations = Conversations(options.conversations, options.turns, vocab_size, seed)
    conversations.turn(engine)
    seconds = sum(conversations.turn(engine) for _ in range(options.turns))
    return 60 * options.conversations * options.turns / seconds


def report(name: str, unit: str, plain: list[float], coded: list[float]) -> None:
    ratio = statistics.median(c / p for p, c in zip(plain, coded))
    row = {"plain": statistics.median(plain), "coded": statistics.median(coded), "ratio": ratio}
    print(json.dumps({"what": name, "unit": unit} | {k: round(v, 3) for k, v in row.items()}), flush=True)


def main() -> None:
    args = parse_arguments()
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would override the engines' own sizes
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with open(os.path.join(args.checkpoint, "config.json")) as file:
        vocab_size = json.load(file)["vocab_size"]
    models = (args.checkpoint, args.converted)
    if args.concurrent:
        engines = [Engine(model, 512 * MIB, max(args.concurrent), args.eager) for model in models]
        for count in args.concurrent:
            rates: list[list[float]] = [[], []]
            for turn in range(args.rounds + 1):  # the first warms up
                batch = prompts(count, args.prompt, vocab_size, seed=1000 * count + turn)
                for i in (0, 1) if turn % 2 else (1, 0):
                    rates[i].append(decode_rate(engines[i], batch, args.generate))
            report(f"decode, {count} requests", "tokens/s", rates[0][1:], rates[1][1:])
        for engine in engines:
            engine.close()
    if args.short_mib:
        engines = [Engine(model, args.short_mib * MIB, args.requests, args.eager) for model in models]
        rates = [[], []]
        for turn in range(args.rounds + 1):
            batch = prompts(args.requests, args.prompt, vocab_size, seed=77_000 + turn)
            for i in (0, 1) if turn % 2 else (1, 0):
                seconds, _ = engines[i].run(batch, args.short_generate)
                rates[i].append(60 * args.requests / seconds)
        report(f"{args.requests} requests, {args.short_mib} MiB of cache", "requests/min", rates[0][1:], rates[1][1:])
        rates = [[], []]
        for turn in range(args.rounds if args.conversations else 0):
            for i in (0, 1) if turn % 2 else (1, 0):
                rates[i].append(returning_rate(engines[i], args, vocab_size, seed=99_000 + turn))
        if args.conversations:
            name = f"{args.conversations} conversations, {args.short_mib} MiB of cache"
            report(name, "answers/min", rates[0], rates[1])
        for engine in engines:
            engine.close()


if __name__ == "__main__":
    main()
