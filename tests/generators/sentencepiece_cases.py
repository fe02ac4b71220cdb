"""Directories with a sentencepiece tokenizer.model on which the native tokenizer is compared with transformers'
Python tokenizers of version 4, the last that use the sentencepiece library themselves."""
import json
import shutil
import tempfile
from pathlib import Path

import sentencepiece
import tokenizer_cases as cases
from transformers import GemmaTokenizer, LlamaTokenizer

UNICODE_TEXT = ["caf\u00e9 na\u00efve r\u00e9sum\u00e9", "\u4f60\u597d\u4e16\u754c", "\u3053\u3093\u306b\u3061\u306f", "\uff28\uff45\uff4c\uff4c\uff4f",
                "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "\U0001f600 smile"] * 20

# Settings of sentencepiece's trainer.
MODELS = {
    "bpe_bytes": dict(model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
                      remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
    "bpe_no_prefix": dict(model_type="bpe", vocab_size=720, byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False, add_dummy_prefix=False, split_digits=True, pad_id=0, eos_id=1, bos_id=2,
                          unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>", unk_piece="<unk>",
                          allow_whitespace_only_pieces=True,
                          user_defined_symbols=["<mask>", "<start_of_turn>", "<end_of_turn>", "\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<td>"]),
    "bpe_no_bytes": dict(model_type="bpe", vocab_size=450, normalization_rule_name="identity", user_defined_symbols=["<user>", "the", "ab"],
                         control_symbols=["<ctl>"]),
    "unigram_nfkc": dict(model_type="unigram", vocab_size=450, normalization_rule_name="nmt_nfkc", user_defined_symbols=["<user>"]),
    "unigram_bytes": dict(model_type="unigram", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False),
}


def flags(content, **values):
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": False, **values}


SPECIAL = {str(number): flags(name, special=True) for number, name in enumerate(["<unk>", "<s>", "</s>"])}


def added(first):
    """Added tokens with every flag, some of which overlap."""
    tokens = [flags("<keep>", normalized=True), flags("<left>", lstrip=True), flags("<right>", rstrip=True),
              flags("<both>", lstrip=True, rstrip=True, special=True), flags("<word>", single_word=True), flags("abc"), flags("bd"),
              flags("<extra>", special=True), flags("c<"), flags("<keep>er"), flags("<norm>", normalized=True, rstrip=True, special=True)]
    return {**SPECIAL, **{str(first + i): token for i, token in enumerate(tokens)}}


LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
# Name -> the model, tokenizer_config.json and other files of the directory.
DIRECTORIES = {
    "sentencepiece_llama": ("bpe_bytes", {**LLAMA, "legacy": False, "added_tokens_decoder": SPECIAL}, {}),
    "sentencepiece_legacy": ("bpe_bytes", {**LLAMA, "legacy": True, "added_tokens_decoder": added(700),
                                           "additional_special_tokens": ["<extra>", "<both>"]}, {}),
    "sentencepiece_added": ("bpe_bytes", {**LLAMA, "legacy": False, "add_eos_token": True, "added_tokens_decoder": added(703),
                                          "additional_special_tokens": ["<extra>"], "pad_token": "<pad>"}, {}),
    "sentencepiece_no_space": ("bpe_bytes", {**LLAMA, "legacy": False, "add_bos_token": False, "add_prefix_space": False,
                                             "added_tokens_decoder": added(700)}, {}),
    "sentencepiece_old_files": ("bpe_bytes", {"tokenizer_class": "LlamaTokenizerFast"}, {
        "added_tokens.json": {"<pad>": 700, "<|im_end|>": 702},
        "special_tokens_map.json": {"bos_token": flags("<s>"), "eos_token": "<|im_end|>", "pad_token": "<pad>", "unk_token": "<unk>",
                                    "additional_special_tokens": ["<tool>"]}}),
    "sentencepiece_gemma": ("bpe_no_prefix", {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>",
                                              "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
                                              "added_tokens_decoder": {
                                                  str(i): flags(name, special=True) for i, name in
                                                  [(0, "<pad>"), (1, "<eos>"), (2, "<bos>"), (3, "<unk>"), (4, "<mask>"),
                                                   (5, "<start_of_turn>"), (6, "<end_of_turn>")]}}, {}),
    "sentencepiece_gemma_plain": ("bpe_no_prefix", {"tokenizer_class": "GemmaTokenizer", "add_bos_token": False}, {}),
    "sentencepiece_symbols": ("bpe_no_bytes", {**LLAMA, "legacy": False}, {}),
    "sentencepiece_symbols_legacy": ("bpe_no_bytes", LLAMA, {}),
    "sentencepiece_nfkc": ("unigram_nfkc", {**LLAMA, "legacy": True}, {}),
    "sentencepiece_nfkc_new": ("unigram_nfkc", {**LLAMA, "legacy": False, "added_tokens_decoder": added(450)}, {}),
    "sentencepiece_unigram": ("unigram_bytes", {**LLAMA, "legacy": False, "added_tokens_decoder": added(700)}, {}),
    "sentencepiece_unigram_legacy": ("unigram_bytes", {**LLAMA, "legacy": True}, {}),
}


def train(name, path):
    with tempfile.TemporaryDirectory() as directory:
        text = Path(directory) / "text.txt"
        natural = (cases.DATA / "texts" / "tinystories_calibration.txt").read_text(encoding="utf-8")[:200_000]
        text.write_text("\n".join([natural, *UNICODE_TEXT]), encoding="utf-8")
        prefix = Path(directory) / "model"
        sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(prefix), minloglevel=2, num_threads=1,
                                                 character_coverage=0.999, **MODELS[name])
        shutil.copyfile(f"{prefix}.model", path)


def write_directory(name, models, directory):
    """`models`: a directory where trained models are kept as <name>.model."""
    model, config, files = DIRECTORIES[name]
    trained = models / f"{model}.model"
    if not trained.exists():
        train(model, trained)
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(trained, directory / "tokenizer.model")
    for file, content in {"tokenizer_config.json": config, **files}.items():
        (directory / file).write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")


def load(directory):
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    kind = GemmaTokenizer if config["tokenizer_class"].startswith("Gemma") else LlamaTokenizer
    library = kind.from_pretrained(str(directory))
    # The library works these lists out again for every token.
    fixed = {name: property(lambda self, value=getattr(library, name): value) for name in ("all_special_ids", "all_special_tokens")}
    library.__class__ = type(kind.__name__, (kind,), fixed)
    return library


def decode(library, ids, skip_special_tokens):
    return library.decode(ids, skip_special_tokens=skip_special_tokens, spaces_between_special_tokens=False,
                          clean_up_tokenization_spaces=False)


OVERLAPS = ["abd", "abdc<", "xabc<keep>erabd", "ab", "abc", "c<s>", "abc<s> a", "<keep>er", " <left> <right> ", "a <word> b", "a<word>b",
            "<word>", " <word>x", "<extra>\u2581\u2581a", "\u2581<s>", "\u2581 <s>\u2581 ", "<user>the abab", "<ctl>", "x<ctl>y<user>",
            "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n", "a   b    c", "\n\n\n\n", "<td><td> x", "\x1c<left>\x1d<right>\x1f\x85",
            "<pad><tool><|im_end|> z"]


def texts(rng, count):
    yield from cases.NASTY
    yield from OVERLAPS
    for text in cases.random_texts(rng, count):
        yield text
        if rng.randrange(4) == 0:
            yield "".join(rng.choice(OVERLAPS + [" ", "a", "\u2581", text[:10]]) for _ in range(rng.randrange(1, 6)))
