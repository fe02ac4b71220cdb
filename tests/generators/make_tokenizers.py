#!/usr/bin/env python3
"""Writes tests/data/tokenizer/<family>/tokenizer.json: small BPE tokenizers, trained here, with the normalizers,
patterns, models, post-processors and decoders of the tokenizers that models are published with.

    .venv/bin/python tests/generators/make_tokenizers.py && .venv/bin/python tests/generators/make_tokenizer_golden.py
"""
import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split

import tokenizer_cases as cases

OUTPUT = cases.DATA / "tokenizer"
VOCAB_SIZE = 1000

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
CL100K = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}")
O200K = "|".join([rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{CONTRACTIONS}?",
                  rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{CONTRACTIONS}?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", SPACES])
KIMI = "|".join([r"[\p{Han}]+",
                 rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]*[{LOWER}&&[^\p{{Han}}]]+{CONTRACTIONS}?",
                 rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]+[{LOWER}&&[^\p{{Han}}]]*{CONTRACTIONS}?",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", SPACES])
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
            + SPACES]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"

LANGUAGES = [
    "\u6240\u6709\u4eba\u90fd\u662f\u5e73\u7b49\u7684\uff0c\u5929\u6c14\u5f88\u597d\u3002", "\u3059\u3079\u3066\u306e\u4eba\u9593\u306f\u81ea\u7531\u3067\u3001\u30c6\u30b9\u30c8\u3067\u3059\u3002",
    "\ubaa8\ub4e0 \uc0ac\ub78c\uc740 \uc790\uc720\ub86d\uac8c \ud0dc\uc5b4\ub09c\ub2e4.", "\u064a\u0648\u0644\u062f \u062c\u0645\u064a\u0639 \u0627\u0644\u0646\u0627\u0633 \u0623\u062d\u0631\u0627\u0631\u064b\u0627.",
    "\u05db\u05dc \u05d1\u05e0\u05d9 \u05d4\u05d0\u05d3\u05dd \u05e0\u05d5\u05dc\u05d3\u05d5.", "\u0938\u092d\u0940 \u092e\u0928\u0941\u0937\u094d\u092f\u094b\u0902 \u0915\u094b", "\u0e21\u0e19\u0e38\u0e29\u0e22\u0e4c\u0e17\u0e31\u0e49\u0e07\u0e2b\u0e25\u0e32\u0e22",
    "\u0412\u0441\u0435 \u043b\u044e\u0434\u0438 \u0440\u043e\u0436\u0434\u0430\u044e\u0442\u0441\u044f \u0441\u0432\u043e\u0431\u043e\u0434\u043d\u044b\u043c\u0438.", "\u038c\u03bb\u03bf\u03b9 \u03bf\u03b9 \u03ac\u03bd\u03b8\u03c1\u03c9\u03c0\u03bf\u03b9",
    "Alle Menschen sind frei und gleich an W\u00fcrde geboren; stra\u00dfe.", "Tous les \u00eatres humains naissent libres, l'\u00e9t\u00e9 \u00e0 No\u00ebl.",
    "T\u1ea5t c\u1ea3 m\u1ecdi ng\u01b0\u1eddi sinh ra", "for (int i = 0; i < 10; ++i) {\n\treturn x[i] != 3.14;\n}", "\U0001f600 \U0001f44d\U0001f3fd 1234567890 2024-01-31",
]


def byte_level(**options):
    return ByteLevel(**{"add_prefix_space": False, "use_regex": False, **options})


def splits(*patterns):
    return Sequence([*(Split(Regex(p), "isolated") for p in patterns), byte_level()])


def definition(normalizer=None, pre_tokenizer=None, decoder=None, post_processor=None, specials=("<|endoftext|>",), **model):
    """What `train` needs; `byte_fallback` makes a Metaspace-style vocabulary, otherwise it is of bytes."""
    return {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder or decoders.ByteLevel(),
            "post_processor": post_processor, "specials": list(specials), "model": model}


def template(before, after=()):
    """TemplateProcessing; special tokens are numbered in the order in which they are trained."""
    def make(ids):
        pieces = [*before, "$A", *after]
        return processors.TemplateProcessing(single=pieces, pair=[*pieces, "$B"], special_tokens=[(t, ids[t]) for t in {*before, *after}])
    return make


def spaces_to_metaspace():
    return normalizers.Replace(" ", "\u2581")


def llama2_decoder():
    return decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def families():
    llama = {"specials": ["<unk>", "<s>", "</s>"], "byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>",
             "post_processor": template(["<s>"])}
    metaspace = {**llama, "decoder": llama2_decoder()}
    bos = template(["<|begin_of_text|>"])
    return {
        "gpt2": definition(pre_tokenizer=ByteLevel(add_prefix_space=False), post_processor=processors.ByteLevel(trim_offsets=False)),
        "llama3": definition(pre_tokenizer=splits(CL100K), specials=["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True,
                             post_processor=lambda ids: processors.Sequence([processors.ByteLevel(trim_offsets=False), bos(ids)])),
        "qwen2": definition(normalizers.NFC(), splits(QWEN2)),
        "qwen35": definition(normalizers.NFC(), splits(QWEN35)),
        "o200k": definition(pre_tokenizer=splits(O200K), specials=["<|endoftext|>", "<|endofprompt|>"]),
        "kimi": definition(pre_tokenizer=splits(KIMI)),
        "starcoder2": definition(pre_tokenizer=Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])),
        "deepseek_v3": definition(normalizers.Sequence([]), splits(*DEEPSEEK), specials=["<\uff5cbegin\u2581of\u2581sentence\uff5c>"],
                                  post_processor=template(["<\uff5cbegin\u2581of\u2581sentence\uff5c>"])),
        "deepseek_coder": definition(normalizers.Sequence([]), Sequence(
            [*(Split(Regex(p), "isolated") for p in DEEPSEEK_CODER), Digits(individual_digits=True), byte_level()])),
        "falcon": definition(pre_tokenizer=Sequence([Punctuation("contiguous"), ByteLevel(add_prefix_space=False), Digits(individual_digits=False),
                                                     Split(Regex("[0-9][0-9][0-9]"), "isolated")])),
        "gpt_neox": definition(normalizers.NFC(), ByteLevel(add_prefix_space=True), post_processor=processors.RobertaProcessing(
            ("<|endoftext|>", 0), ("<|endoftext|>", 0))),
        "clip": definition(normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
                           Sequence([Split(Regex(CLIP), "removed", invert=True), ByteLevel(add_prefix_space=False)]),
                           specials=["<|endoftext|>"], end_of_word_suffix="</w>", unk_token="<|endoftext|>",
                           decoder=decoders.BPEDecoder("</w>")),
        "llama2": definition(normalizers.Sequence([normalizers.Prepend("\u2581"), spaces_to_metaspace()]), None, **metaspace),
        "mistral": definition(None, Metaspace(prepend_scheme="first", split=False), **metaspace),
        "metaspace_always": definition(None, Metaspace(prepend_scheme="always", split=True), **{**llama, "decoder": decoders.Metaspace()}),
        "metaspace_never": definition(normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
                                      Sequence([Punctuation("merged_with_previous"), Metaspace(prepend_scheme="never", split=True)]),
                                      **{**llama, "decoder": decoders.Metaspace(prepend_scheme="never"), "byte_fallback": False}),
        "gemma": definition(spaces_to_metaspace(), Split(" ", "merged_with_previous"), specials=["<pad>", "<eos>", "<bos>", "<unk>"],
                            byte_fallback=True, fuse_unk=True, unk_token="<unk>", post_processor=template(["<bos>"]),
                            decoder=decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])),
        "accents": definition(normalizers.Sequence([normalizers.Strip(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]),
                              Sequence([pre_tokenizers.WhitespaceSplit(), Metaspace(prepend_scheme="first")]),
                              **{**llama, "decoder": decoders.Metaspace(), "post_processor": template(["<s>"], ["</s>"])}),
        "control": definition(normalizers.Sequence([normalizers.Nmt(), normalizers.NFD(), normalizers.Strip(left=False)]),
                              Sequence([pre_tokenizers.Whitespace(), Split(Regex("[aeiou]"), "contiguous"), Split("th", "merged_with_next")]),
                              specials=["<unk>", "[CLS]", "[SEP]"], unk_token="<unk>", byte_fallback=False,
                              continuing_subword_prefix="##", post_processor=processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
                              decoder=decoders.Fuse()),
    }


def training_pre_tokenizer(family):
    """Without any, whole texts would be words."""
    if family["pre_tokenizer"] is None or "Metaspace" in repr(family["pre_tokenizer"]) or family["normalizer"] and "Replace(" in repr(family["normalizer"]):
        return family["pre_tokenizer"] if "ByteLevel" in repr(family["pre_tokenizer"]) else Metaspace()
    return family["pre_tokenizer"]


def train(family, lines):
    model = {key: value for key, value in family["model"].items() if key not in ("ignore_merges", "fuse_unk", "byte_fallback")}
    tokenizer = Tokenizer(models.BPE(**model))
    of_bytes = "byte_fallback" not in family["model"]
    if family["normalizer"] is not None and "Prepend" not in repr(family["normalizer"]):
        tokenizer.normalizer = family["normalizer"]
    tokenizer.pre_tokenizer = training_pre_tokenizer(family)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if family["model"].get("byte_fallback") else []
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE + len(byte_tokens), special_tokens=[*family["specials"], *byte_tokens], show_progress=False,
        initial_alphabet=ByteLevel.alphabet() if of_bytes else [], limit_alphabet=400,
        **{key: model[key] for key in ("continuing_subword_prefix", "end_of_word_suffix") if key in model})
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str()), byte_tokens


def component(value):
    """A component's JSON."""
    return None if value is None else json.loads(value.__getstate__().decode())


def make(family, lines):
    trained, byte_tokens = train(family, lines)
    trained["added_tokens"] = [token for token in trained["added_tokens"] if token["content"] not in byte_tokens]
    post_processor = family["post_processor"]
    if callable(post_processor):
        post_processor = post_processor({token["content"]: token["id"] for token in trained["added_tokens"]})
    trained["normalizer"], trained["pre_tokenizer"] = component(family["normalizer"]), component(family["pre_tokenizer"])
    trained["decoder"], trained["post_processor"] = component(family["decoder"]), component(post_processor)
    for key in ("ignore_merges", "fuse_unk", "byte_fallback"):
        trained["model"][key] = family["model"].get(key, False)
    trained["model"].update({key: trained["model"][key] for key in ("vocab", "merges")})
    return cases.with_added_tokens(trained)


def main():
    texts = [path.read_text(encoding="utf-8")[:120_000] for path in sorted((cases.DATA / "texts").glob("*.txt"))]
    lines = [line for text in texts for line in text.splitlines()] + LANGUAGES * 20
    for name, family in families().items():
        directory = OUTPUT / name
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(make(family, lines), separators=(",", ":"))
        Tokenizer.from_str(text)
        (directory / "tokenizer.json").write_text(text + "\n", encoding="ascii")
        print(name, len(text))


if __name__ == "__main__":
    main()
