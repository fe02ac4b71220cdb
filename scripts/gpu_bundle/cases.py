"""The cases: generations of one checkpoint in several ways, conversions with a generation of each, and the ops for engines."""

import json
import math

import compare
from bench import HERE

REFERENCE, REFERENCE_128 = "reference-llama", "reference-llama-128"
CALIBRATION, HELD_OUT = "texts/tinystories_calibration.txt", "texts/tinystories_heldout.txt"
# The GPU computes in 16 bits. Pages of the CPU's cache have the GPU's size, so that bytes can be compared.
SHORT_FLOATS, LONG_FLOATS, PAGES = ("--dtype", "float16"), ("--dtype", "float32"), ("--page-tokens", "32")
TEMPERATURE, TOP_P = 0.8, 0.9
# Share of the rows whose logits must lie within the tolerance. Where scores choose what a cache keeps, or codes are rounded, the
# last bit of a number may decide.
PLAIN_SHARE, CHOSEN_SHARE = 1.0, 0.98
# The window passes over two blocks of latents while a conversion's case generates.
BLOCKS = ("--window", "24", "--block", "24")
CODED = ("--method", "coded", "--kept-ratio", "0.25")
EFFORT = ("--num-sequences", "8", "--seq-len", "256", "--no-validate")


class Generation:
    """Tokens and logits of a checkpoint.

    The texts that a device generated are read again, by steps of one token, on the CPU in float32 and in float16 and on the
    device. So each token is judged behind the same text: its logits, and whether greedy choice or top-p could have taken it.
    """

    def __init__(self, bench, directory, lengths, new_tokens, models=(REFERENCE,), options=(), cache="float16", top_p=False,
                 share=PLAIN_SHARE):
        self.bench, self.directory, self.models = bench, directory, models
        self.lengths, self.new_tokens, self.top_p, self.share = lengths, new_tokens, top_p, share
        self.options = (*PAGES, "--kv-dtype", cache, *options)
        self.sampling = ("--temperature", TEMPERATURE, "--top-p", TOP_P) if top_p else ()
        self.replays = {}
        self.cpu_result = None

    def on_cpu(self, part, model=None):
        self.model = model or self.bench.data(*self.models)
        self.prompts = self.make_prompts(part)
        self.prompt_file = self.write("prompts", self.prompts)
        self.cpu_result = self.generate(part, "cpu")
        self.judge(part, "cpu", self.cpu_result)

    def on_device(self, part):
        device = self.bench.options.device
        result = self.generate(part, device)
        again = self.generate(part, device) if self.top_p else result
        part.check(again["tokens"] == result["tokens"], "the same seed gave other tokens in a second run")
        share = compare.equal_share(result["tokens"], self.cpu_result["tokens"])
        kept = self.kept_ratio(result)
        part.note(tokens_equal=share == 1.0, tokens_equal_share=share)
        cpu_kept = self.kept_ratio(self.cpu_result)
        part.note(kept_ratio={"cpu": cpu_kept, "device": kept, "equal": kept == cpu_kept})
        # Compressed caches also reserve room, the GPU more of it.
        part.check(kept == cpu_kept or self.share < PLAIN_SHARE, f"kept_ratio {kept:.4f}, the CPU's {cpu_kept:.4f}")
        self.judge(part, device, result)

    def make_prompts(self, part):
        """Pieces of the held-out text, of these lengths."""
        ids = json.loads(part.run("kvrun", self.model, "--tokenize", self.bench.data(HELD_OUT)))
        begins = [(7 + 601 * i) % (len(ids) - length) for i, length in enumerate(self.lengths)]
        return [ids[begin:begin + length] for begin, length in zip(begins, self.lengths)]

    def write(self, name, texts):
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(texts), encoding="utf-8")
        return path

    def generate(self, part, device):
        arguments = ("kvrun", self.model, "--ids", self.prompt_file, "--max-new-tokens", self.new_tokens, "--ignore-eos", "--json",
                     "--device", device, *SHORT_FLOATS, *self.options, *self.sampling)
        planned = json.loads(part.run(*arguments, "--plan"))
        result = json.loads(part.run(*arguments))
        held = sum(kv["bytes"] for kv in result["kv"])
        part.note(kv_bytes=held, planned_kv_bytes=planned["end_bytes"], timing=result["timing"])
        part.check(held <= planned["end_bytes"], f"the cache holds {held} bytes, --plan says at most {planned['end_bytes']}")
        part.check([len(tokens) for tokens in result["tokens"]] == [self.new_tokens] * len(self.prompts),
                   f"{self.new_tokens} tokens of {len(self.prompts)} sequences expected, found {[len(t) for t in result['tokens']]}")
        return result

    @staticmethod
    def kept_ratio(result):
        return sum(kv["bytes"] for kv in result["kv"]) / sum(kv["original_bytes"] for kv in result["kv"])

    def replay(self, part, device, floats, tokens):
        """Logits of all rows of the texts; what follows the shortest prompt is read in steps."""
        texts = [prompt + new for prompt, new in zip(self.prompts, tokens)]
        key = (device, floats, json.dumps(texts))
        if key not in self.replays:
            out = self.directory / f"logits{len(self.replays)}.safetensors"
            part.run("kvrun", self.model, "--ids", self.write("texts", texts), "--prefill-tokens", min(self.lengths), "--logits", out,
                     "--max-new-tokens", "1", "--device", device, *floats, *self.options)
            self.replays[key] = compare.read_logits(out)
            out.unlink()
        return self.replays[key]

    def judge(self, part, device, result):
        tokens = result["tokens"]
        exact = self.replay(part, "cpu", LONG_FLOATS, tokens)
        rounding = max(compare.differences(exact, self.replay(part, "cpu", SHORT_FLOATS, tokens)))
        tolerance, most = compare.tolerances(exact, rounding)
        part.check(rounding <= most, f"float16 on the CPU lies {rounding:.4g} from float32, at most {most:.4g} expected")
        own = self.replay(part, device, SHORT_FLOATS, tokens)
        found = compare.differences(exact, own)
        part.check(math.isfinite(max(found)), "logits are no numbers")
        within = sum(difference <= tolerance for difference in found) / len(found)
        part.note(max_logit_difference=max(found), tolerance=tolerance, rounding_on_cpu=rounding, share_within_tolerance=within,
                  same_top_share=compare.same_top(exact, own))
        part.check(within >= self.share, f"logits differ by {max(found):.4g}, tolerance {tolerance:.4g}: {within:.4f} of the rows are "
                   f"within it, {self.share} expected")
        # Both logits may be off by as much.
        misfits = [self.is_misfit(rows[length - 1 + i], token, 2 * tolerance)
                   for rows, length, new in zip(exact, self.lengths, tokens) for i, token in enumerate(new)]
        choice = f"top-p {TOP_P}" if self.top_p else "greedy choice"
        part.check(sum(misfits) <= (1 - self.share) * len(misfits), f"{sum(misfits)} of {len(misfits)} tokens are none that {choice} takes")

    def is_misfit(self, row, token, slack):
        if self.top_p:
            return compare.mass_above(row, token, TEMPERATURE, slack) >= TOP_P
        return compare.greedy_gap(row, token) > slack


class Conversion:
    """A conversion on the device beside the CPU's, and a generation of the CPU's by both."""

    def __init__(self, bench, directory, method):
        self.bench, self.directory, self.method = bench, directory, method
        self.generation = Generation(bench, directory, (200, 200), 56, share=CHOSEN_SHARE)
        self.cpu_quality = None

    def on_cpu(self, part):
        self.original = self.bench.data(REFERENCE)
        self.cpu_quality = self.convert(part, "cpu")
        self.generation.on_cpu(part, self.directory / "cpu")

    def on_device(self, part):
        quality = self.convert(part, self.bench.options.device, "device")
        divergence, cpu = self.median_divergence(quality), self.median_divergence(self.cpu_quality)
        part.note(cpu_kl_divergence=cpu, kl_divergence=divergence)
        # Statistics of 16-bit activations on a GPU, of float32 on the CPU. Few tokens make most of the mean.
        part.check(divergence <= 1.5 * cpu, f"median KL divergence {divergence:.4g} of the device's conversion, {cpu:.4g} of the CPU's")
        part.note(conversion_kept_ratio={"cpu": self.cpu_quality["kept_ratio"], "device": quality["kept_ratio"],
                                         "equal": quality["kept_ratio"] == self.cpu_quality["kept_ratio"]})
        part.check(abs(quality["kept_ratio"] - self.cpu_quality["kept_ratio"]) <= 0.01,
                   f"kept_ratio {quality['kept_ratio']:.4f}, the CPU's {self.cpu_quality['kept_ratio']:.4f}")
        self.generation.on_device(part)

    def convert(self, part, device, name="cpu"):
        """kvvalidate's report of the conversion, which is in the directory `name`."""
        out = self.directory / name
        part.run("kvconvert", self.original, "--out", out, *self.method, *EFFORT, "--calibration", self.bench.data(CALIBRATION),
                 "--device", device)
        report = json.loads(part.run("kvvalidate", self.original, out, "--text", self.bench.data(HELD_OUT), "--num-sequences", "4",
                                     "--seq-len", "256", "--json"))
        part.note(kl_divergence=self.median_divergence(report), conversion_kept_ratio=report["kept_ratio"])
        return report

    @staticmethod
    def median_divergence(report):
        return report["continuation"]["kl_divergence"]["median"]


class Ops:
    """The ops that engines call, in the torch of this machine."""

    def __init__(self, bench, _directory):
        self.bench = bench

    def on_cpu(self, part):
        self.compare(part, "cpu")

    def on_device(self, part):
        device = self.bench.options.device
        self.compare(part, device, *(["--time"] if device != "cpu" else []))

    @staticmethod
    def compare(part, device, *options):
        part.note(**json.loads(part.run_python("ops.py", HERE / "lib/libkvconvert_ops.so", device, *options)))


class Transformers:
    """A conversion in transformers on the device, beside the CPU."""

    def __init__(self, bench, directory, form):
        self.bench, self.directory, self.form = bench, directory, form

    def on_cpu(self, part):
        self.original = self.bench.data(REFERENCE)
        self.converted = self.directory / "converted"
        part.run("kvconvert", self.original, "--out", self.converted, "--method", "coded", "--kept-ratio", "0.25", *self.form, "--prefill",
                 "coded", *EFFORT, "--calibration", self.bench.data(CALIBRATION))
        self.compare(part, "cpu")

    def on_device(self, part):
        self.compare(part, self.bench.options.device, "--original", self.original)

    def compare(self, part, device, *options):
        report = json.loads(part.run_python("serve.py", HERE / "python", HERE / "lib/libkvconvert_ops.so", self.converted, device, *options))
        part.note(**report)
        part.skip(report.get("skipped"))
        part.check(report["passed"], "logits or bytes of the cache differ from the CPU's")


# Name: a function of bench and directory. Lengths of plain caches are such that the GPU's, which have room for all new tokens, have
# as many pages of 32 tokens as the CPU's. A cache is compressed at the end of a prompt: where it is, prompts are of one length.
CASES = {
    "greedy": lambda *place: Generation(*place, (40, 100), 60),
    "coded": lambda *place: Conversion(*place, CODED),
    "rotated": lambda *place: Conversion(*place, CODED + ("--form", "rotated", "--scope", "head")),
    "blocks": lambda *place: Conversion(*place, CODED + ("--form", "blocks", "--scope", "head")),
    "group": lambda *place: Conversion(*place, CODED + ("--scope", "group", "--group", "2")),
    "for-vllm": lambda *place: Conversion(*place, CODED + ("--for", "vllm")),
    "ops": Ops,
    "transformers": lambda *place: Transformers(*place, ("--form", "rotated", "--scope", "head")),
    "transformers-group": lambda *place: Transformers(*place, ("--scope", "group", "--group", "2")),
    "long": lambda *place: Generation(*place, (2100,), 48, (REFERENCE_128, REFERENCE)),
    "batch": lambda *place: Generation(*place, tuple(range(20, 100, 5)), 24),
    "top-p": lambda *place: Generation(*place, (100, 40), 40, top_p=True),
    "h2o": lambda *place: Generation(*place, (300,), 40, options=("--policy", "h2o:budget=128"), share=CHOSEN_SHARE),
    "commonkv": lambda *place: Conversion(*place, ("--method", "commonkv", *BLOCKS)),
    "snapkv": lambda *place: Generation(*place, (300,), 40, options=("--policy", "snapkv:budget=128"), share=CHOSEN_SHARE),
    "fusedkv": lambda *place: Conversion(*place, ("--method", "fusedkv", "--force")),
    "int8": lambda *place: Generation(*place, (40, 100), 60, cache="int8", share=CHOSEN_SHARE),
    "int4": lambda *place: Generation(*place, (40, 100), 60, cache="int4", share=CHOSEN_SHARE),
    "xkv-static": lambda *place: Conversion(*place, ("--method", "xkv-static", "--rank-multiple", "32", *BLOCKS)),
}
