"""Tokenizers and texts on which the native tokenizer is compared with the tokenizers library."""
import copy
import json
import random
import unicodedata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"

SPECIALS = ["<s>", "</s>", "<unk>", "<0x41>", "<keep>", "<left>", "<right>", "<both>", "<word>", "<norm>",
            "<wide norm>"]

NASTY = [
    "", " ", "  ", "   ", "\n", "\r\n", "\t", "\r", "\n\n\n", " \n ", "\u00a0", "\u3000 \u2028", "a", " a", "a ",
    "  a  b  ", "Hello, world!", "it's we're I'll 'tis 'S 'LL don''t '' 've'd'm", "1234567890 12 3.14 1,000",
    "Once upon a time, there was a little girl named Lily.", "snake_case camelCase kebab-case", "\u2581", "\u2581\u2581a",
    " \u2581 b", "caf\u00e9 cafe\u0301 na\u00efve", "\u0301\u0302", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea flags", "\u4f60\u597d\u4e16\u754c", "\u3053\u3093\u306b\u3061\u306f", "\uc548\ub155",
    "\u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u0663", "\u05e9\u05dc\u05d5\u05dd", "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\x00", "a\x00b", "".join(map(chr, range(32))), "\x7f\x80\x85\x9f", "\ufeffBOM", "\ufffd", "\uffff", "\U0010ffff",
    "\u200b\u200c\u200d\u2060", "\u180e", "\u00ad", "\u2160\u00bd\u00b2\u0967", "<s>", "<s></s>", "a<s>b", " <s> ", "<s", "<<s>>",
    "<unk>", "x<unk>y", "<0x41>", "<0x0A>", "</s> end", "<S>", "a" * 300, "ab" * 200, " " * 100, "\n" * 50, "\u00e9" * 100,
    "the the the " * 40, "\U0001f600" * 40, "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "tab\tsep\tvalue", "trailing \n", "\n leading",
    "e\u0301" * 10, "\u1100\u1161\u11a8 \uac00\u11a8", "a\u0345\u0323\u0301\u0316b", "\u0344\u0f73\u0f71\u0f72", "\u212b\u2126\ufb01\ufdfa",
    "\uff21\uff42\uff11", "A\u030a\u0327 \u1e69\u0323", "\u09c7\u09be\u0b47\u0b56\U00011131\U00011127", "\U00011935\U00011930", "DON'T I\u2019LL we'Re \u017fS",
    "camelCaseHTTPServer", "x\u4e2d\u6587y\u30ab\u30bf\u30ab\u30ca", "http://a.b/c?d=e&f#g", "/* c */\n\n\t\tif (x) {\r\n}", "$1,234.56 \u20ac5 \u00a5", " \u00a0 \u2003x",
    "  <left>  <right>  <both>  <word> a<word>b", "<NORM> <norm><wide norm>  x", "<word><word> <word>", "<le<left>ft>", "<\uff4eorm> \u24ddorm",
    "\u0661\u0662\u0663\u0664 \u2167\u00bc", "\u200dx\ufe0f\u20e3", "\u0410\u0301\u0411 \u0399\u0308\u0301", "\u03a3\u03a3 \u0130I\u0131", "_a__b_ \u203f",
    "e\u0301" * 2, "\u0130\u0131\u017f", "\ufb01\ufb02", "\u1e9e\u00df", "\u0660", "\U0001d7d8\U0001d400", "\U00010ffe",
]


def directory(name):
    return DATA / name


def load(name):
    return json.loads((directory(name) / "tokenizer.json").read_text(encoding="utf-8"))


def added_token(content, number, **flags):
    token = dict(id=number, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    return {**token, **flags}


def with_added_tokens(base):
    """Adds one token per flag."""
    flags = {"<keep>": {}, "<left>": {"lstrip": True}, "<right>": {"rstrip": True}, "<both>": {"lstrip": True, "rstrip": True},
             "<word>": {"single_word": True}, "<norm>": {"normalized": True},
             "<wide norm>": {"normalized": True, "special": True, "rstrip": True}}
    changed = copy.deepcopy(base)
    first = len(base["model"]["vocab"])
    changed["added_tokens"] += [added_token(content, first + i, **kind) for i, (content, kind) in enumerate(flags.items())]
    return changed


def with_model(base, **values):
    changed = copy.deepcopy(base)
    changed["model"].update(values)
    return changed


def with_part(base, part, **values):
    changed = copy.deepcopy(base)
    if changed[part] is None or "type" in values:
        changed[part] = values or None
    else:
        changed[part].update(values)
    return changed


def without_tokens(base, dropped):
    """Removes tokens and all merges that need them; ids close up."""
    changed = copy.deepcopy(base)
    kept = [token for token in base["model"]["vocab"] if token not in dropped]
    changed["model"]["vocab"] = {token: number for number, token in enumerate(kept)}
    changed["model"]["merges"] = [m for m in base["model"]["merges"] if not {m[0], m[1], m[0] + m[1]} & dropped]
    return changed


def with_first_merges(base, count):
    """Only the tokens of the earliest merges, single characters and bytes."""
    merges = base["model"]["merges"]
    made = {left + right for left, right in merges[:count]}
    return without_tokens(base, {left + right for left, right in merges[count:]} - made)


def legacy(base):
    """The older spelling of merges, no model type."""
    changed = with_model(base, merges=["#version: 0.2"] + [" ".join(merge) for merge in base["model"]["merges"]])
    del changed["model"]["type"]
    return changed


def variants(small=False):
    """Name -> tokenizer.json: the two real ones and changed ones. `small`: with a small vocabulary."""
    byte_level, metaspace = load("reference-llama"), load("stories260K-hf")
    if small:
        byte_level, metaspace = with_first_merges(byte_level, 250), with_first_merges(metaspace, 100)
    byte_tokens = {f"<0x{byte:02X}>" for byte in range(256)}
    half_bytes = {f"<0x{byte:02X}>" for byte in range(0xA0, 256)}
    words = {"the", "Once", "time", "!"}
    no_bytes = without_tokens(metaspace, byte_tokens | {"x", "q"})
    some_bytes = without_tokens(metaspace, half_bytes | {"x", "q"})
    return {
        "byte_level": byte_level,
        "byte_level_added": with_added_tokens(byte_level),
        "byte_level_prefix": with_part(with_added_tokens(byte_level), "pre_tokenizer", add_prefix_space=True),
        "byte_level_no_regex": with_part(byte_level, "pre_tokenizer", use_regex=False),
        "byte_level_whole_words": with_model(byte_level, ignore_merges=True, merges=byte_level["model"]["merges"][100:]),
        "byte_level_legacy": legacy(byte_level),
        "byte_level_gaps": without_tokens(byte_level, {"a", "\u0120", "\u00e2", "t"}),
        "byte_level_plain": {**byte_level, "decoder": None, "post_processor": None},
        "metaspace": metaspace,
        "metaspace_added": with_added_tokens(metaspace),
        "metaspace_no_normalizer": {**metaspace, "normalizer": None},
        "metaspace_fused_unknown": with_model(no_bytes, fuse_unk=True),
        "metaspace_single_unknown": with_model(no_bytes, fuse_unk=False),
        "metaspace_dropped_unknown": with_model(no_bytes, unk_token=None),
        "metaspace_some_bytes": with_model(some_bytes, fuse_unk=True),
        "metaspace_some_bytes_single": with_model(some_bytes, fuse_unk=False),
        "metaspace_whole_words": with_model(without_tokens(metaspace, words), ignore_merges=True),
        "metaspace_bytes": with_part(metaspace, "decoder", type="ByteFallback"),
        "metaspace_first": with_parts(metaspace, normalizer=None, pre_tokenizer=METASPACE_FIRST, decoder=METASPACE_FIRST),
        "metaspace_forms": with_parts(with_added_tokens(metaspace), pre_tokenizer=METASPACE_FIRST,
                                      normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, STRIP_LEFT]}),
        "lowercase_bytes": with_parts(with_added_tokens(byte_level),
                                      normalizer={"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFD"}]}),
        "normalized_bytes": with_parts(with_added_tokens(byte_level), normalizer={"type": "ByteLevel"}, pre_tokenizer=None),
    }


METASPACE_FIRST = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
STRIP_LEFT = {"type": "Strip", "strip_left": True, "strip_right": False}
FAMILIES = ("gpt2", "llama3", "qwen2", "qwen35", "o200k", "kimi", "starcoder2", "deepseek_v3", "deepseek_coder", "falcon", "gpt_neox",
            "clip", "llama2", "mistral", "metaspace_always", "metaspace_never", "gemma", "accents", "control")


def families():
    """Name -> tokenizer.json as tests/generators/make_tokenizers.py wrote it."""
    return {name: load(f"tokenizer/{name}") for name in FAMILIES}


def with_parts(base, **parts):
    return {**base, **parts}


def natural_text():
    texts = [*sorted((DATA / "texts").glob("*.txt")), *sorted((ROOT / "model" / "texts").glob("*.txt"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in texts)


def scalar(rng):
    top = rng.choice([0x80, 0x80, 0x100, 0x800, 0x3000, 0x10000, 0x20000, 0x110000])
    code = rng.randrange(top)
    return chr(code) if not 0xD800 <= code < 0xE000 else "\u2028"


def random_texts(rng, count):
    """Pieces of natural text, random characters, and mixtures with tokens' own spellings."""
    natural = natural_text()
    tight = " '\n\tastrevmld1-\u2581\u00e9\u00a0x<>"
    for _ in range(count):
        kind = rng.randrange(4)
        if kind == 0:
            start = rng.randrange(len(natural))
            yield natural[start : start + rng.randrange(1, 200)]
        elif kind == 1:
            yield "".join(scalar(rng) for _ in range(rng.randrange(1, 30)))
        elif kind == 2:
            yield "".join(rng.choice(tight) for _ in range(rng.randrange(1, 40)))
        else:
            parts = [rng.choice(SPECIALS), rng.choice(SPECIALS), scalar(rng), " ", rng.choice(tight), rng.choice(NASTY)[:20]]
            yield "".join(rng.choice(parts) for _ in range(rng.randrange(1, 12)))


def every_scalar():
    return [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def sampled_scalars(step):
    """All assigned scalar values but ideographs, Hangul syllables and private use, and every step-th of the others."""
    def plain(code):
        return unicodedata.category(chr(code)) not in ("Cn", "Co") and not unicodedata.name(chr(code), "").startswith(("CJK", "HANGUL S"))
    return [code for code in every_scalar() if code % step == 0 or plain(code)]


def texts_with_scalars(codes, per_text):
    """Each between letters, after a space, between digits and twice."""
    for start in range(0, len(codes), per_text):
        yield "".join(f"a{chr(c)}b {chr(c)}1{chr(c)}{chr(c)}2" for c in codes[start : start + per_text])


def texts_of_lone_scalars(codes, per_text):
    """Added tokens cut texts: what stands between them is tokenized by itself."""
    for start in range(0, len(codes), per_text):
        yield "<keep>".join(map(chr, codes[start : start + per_text]))


def random_ids(rng, vocab_size, count):
    for _ in range(count):
        yield [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 12))]


def generator(seed):
    return random.Random(seed)
