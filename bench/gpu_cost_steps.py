"""What a decoding step's other kernels, those that write stores, and the work that LibTorch does on a GPU move and compute."""

import dataclasses

from gpu_cost_attention import SOFTMAX, store_bytes, tile_code_bytes
from gpu_cost_model import LANES, MMA, Launch, divide_up, resident_blocks

FEW_ROWS = 32  # kMostFewRows: a launch reads its weight once for so many rows
# Registers of few_rows_product for bfloat16 weights, by whether it is gated, and its tiles of x (check_ptxas.py --list).
PRODUCT_REGISTERS = {(False, 1): 54, (False, 2): 70, (False, 4): 112, (True, 1): 54, (True, 2): 64, (True, 4): 98}

BUDGET_REGISTERS = 204  # of budget_step for bfloat16 rows of 128 channels and up to eight query heads


@dataclasses.dataclass(frozen=True)
class Model:
    """Of Llama-3.1-8B's shape."""

    layers: int = 32
    hidden: int = 4096
    inner: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 128256

    @property
    def projected(self):
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def layer_weights(self):
        return self.hidden * (self.projected + self.hidden + 3 * self.inner)

    @property
    def head_weights(self):
        return self.vocab * self.hidden

    @property
    def weight_bytes(self):
        return 2 * (self.layers * self.layer_weights + self.head_weights)


LLAMA = Model()


def few_rows(gpu, rows, width, out, gated=False, out_bytes=4):
    """few_rows_product of bfloat16 weights. A block has two tiles of 16 of their rows, or one for at most eight rows of x and no gate;
    a fragment of them meets every tile of eight rows of x, which a block reads. Its eight warps have 32 columns each in turn."""
    launches = []
    for first in range(0, rows, FEW_ROWS):
        count = min(FEW_ROWS, rows - first)
        tiles = 1 if count <= 8 else 2 if count <= 16 else 4
        weight_tiles = 2 if gated or tiles > 1 else 1
        matrices = 2 if gated else 1
        blocks = divide_up(out, 16 * weight_tiles // matrices)
        weights, sums = 2 * matrices * width * out, 8 * weight_tiles * tiles * 16 * 8 * 4  # of eight warps
        resident = min(resident_blocks(sums, 256, PRODUCT_REGISTERS[gated, tiles]), max(1, blocks / gpu.multiprocessors))
        launches.append(Launch(
            "few_rows_product", blocks, read=weights + 2 * count * width, written=out_bytes * count * out,
            l2=weights + blocks * 2 * count * width, tensor=MMA * blocks * divide_up(width, 32) * 2 * weight_tiles * tiles,
            shared=2 * blocks * sums, in_flight=resident * 256 * 128, memory_waits=divide_up(width, 32 * 8 * 4 // weight_tiles)))
    return launches


def norm(rows, width):
    """norm_rows: a block's threads keep their numbers of a row in registers."""
    return Launch("norm_rows", rows, read=4 * rows * width, written=2 * rows * width, l2=8 * rows * width, waits=2,
                  float32=4 * rows * width)


def append(model, sequences):
    heads = model.heads + 2 * model.kv_heads
    numbers = sequences * heads * model.head_dim
    return Launch("append_rows", divide_up(heads, 4) * sequences, read=4 * numbers, written=2 * numbers, l2=4 * numbers, memory_waits=2,
                  waits=1)


def append_latents(sequences, width):
    return [Launch("append_latents", sequences, read=4 * sequences * width, written=2 * sequences * width, waits=divide_up(width, 256) + 1)]


def embed(rows, width):
    return Launch("embed_rows", divide_up(width, 128) * rows, read=2 * rows * width, written=4 * rows * width, memory_waits=2)


def sample(sequences, vocab, top_p=False):
    """A block of 512 threads for each sequence: the largest logit, 16 loads from memory at a time. top-p: five passes more over the
    ids, 8 loads at a time: three digits of the threshold, ids that tie with it, and the draw, each with sums of all threads. For the
    first digit a thread adds to 8 bytes of shared memory of its own; about an eighth of the ids then add to 2048 sums alike. Masses
    are computed for that digit, and for what the draw keeps."""
    of_masses, passes = (2, 5) if top_p else (0, 0)
    return Launch("sample_tokens", sequences, read=4 * sequences * vocab, l2=4 * sequences * vocab * (1 + passes),
                  memory_waits=divide_up(vocab, 512 * 16), waits=passes * (divide_up(vocab, 512 * 8) + 4) + 4,
                  atomics=vocab / 8 / 2048 if top_p else 0, shared=2 * 8 * sequences * vocab if top_p else 0,
                  float32=sequences * vocab * (8 * (1 + passes) + 40 * of_masses))


def step(gpu, sequences, attention, top_p=False, model=LLAMA):
    """All launches of a token of every sequence. attention: a layer's."""
    layer = [norm(sequences, model.hidden), *few_rows(gpu, sequences, model.hidden, model.projected), append(model, sequences), *attention,
             *few_rows(gpu, sequences, model.heads * model.head_dim, model.hidden), norm(sequences, model.hidden),
             *few_rows(gpu, sequences, model.hidden, model.inner, gated=True, out_bytes=2),
             *few_rows(gpu, sequences, model.inner, model.hidden)]
    return [embed(sequences, model.hidden), *layer * model.layers, norm(sequences, model.hidden),
            *few_rows(gpu, sequences, model.hidden, model.vocab), sample(sequences, model.vocab, top_p)]


def budget_step(gpu, shape):
    """A layer's step of sequences that keep `tokens` slots, however many tokens came. A multiprocessor holds a block of four warps,
    whose tiles are those of dense attention, the new token's one more; all scaled products go to memory. Then every block moves its
    rows' scores on, which were fetched from memory meanwhile, and the last one of a KV head reads what leaves."""
    group, dim = shape.heads // shape.kv_heads, shape.head_dim
    of_kv_heads = shape.sequences * shape.kv_heads
    parts = max(1, min(gpu.multiprocessors // of_kv_heads, shape.tokens // 128))  # budget_parts() of budget_step.h
    threads, tile_bytes = 128, 2 * 2 * 32 * (dim + 8)  # of keys and values, rows padded
    blocks, tiles = of_kv_heads * parts, of_kv_heads * (divide_up(shape.tokens, 32) + 1)
    partials = shape.sequences * parts * shape.heads * (dim + 2) * 4
    products, scores = 4 * shape.heads * shape.rows, 4 * shape.rows * shape.kv_heads
    row_bytes = 2 * store_bytes("bfloat16", shape.width)
    read = (shape.rows + shape.sequences) * row_bytes + 2 * scores  # scores and positions
    resident = min(resident_blocks(threads // 32 * 2 * tile_bytes, threads, BUDGET_REGISTERS), divide_up(blocks, gpu.multiprocessors))
    float32 = (SOFTMAX + 8 + 4 * (dim // 16)) * shape.query_tiles
    attention = Launch("budget_step", blocks, read=read, written=partials + products, l2=read, tensor=MMA * tiles * shape.query_tiles * 4
                       * (dim // 16), integer=LANES * tiles * 8 * 4, float32=LANES * tiles * float32, shared=tiles * 4 * 2 * 32 * dim,
                       waits=1, memory_waits=2, in_flight=resident * threads // 32 * 64 * store_bytes("bfloat16", dim))
    # One after the other: the cache's addresses, softmaxes of all parts, scores of 8 rows a thread and products with 4 query heads,
    # their lowest in a block, the oldest row's score; with several parts also the counter, its last value, outputs of 16 parts, the
    # counter again, and the lowest of all parts (with the oldest row's score).
    waits = 1 + divide_up(group, threads // 32) * divide_up(parts, LANES) + 2
    waits += divide_up(32 * (divide_up(divide_up(shape.tokens, 32) + 1, parts)), 8 * threads) * divide_up(group, 4)
    if parts > 1:
        waits += 2 + divide_up(group * dim, threads * parts) * divide_up(parts, 16) + 2
    outputs = shape.sequences * parts * shape.heads * (dim + 1) * 4 if parts > 1 else 0
    finish = Launch("budget_step", blocks, read=4 * 2 * dim * 2 * of_kv_heads, written=scores + 2 * shape.sequences * shape.heads * dim,
                    l2=blocks * parts * group * 8 + outputs + products + 2 * scores, float32=shape.heads * shape.rows * 16, launches=0,
                    waits=waits, memory_waits=1)
    return [attention, finish]


def quantise(rows, width, store):
    """A thread makes codes of 32 numbers, which it reads from memory 16 bytes at a time, and again."""
    numbers = rows * width
    return [Launch("quantise_rows", divide_up(numbers // 32, 128), read=2 * numbers, written=rows * store_bytes(store, width),
                   l2=4 * numbers, integer=numbers * 4, float32=numbers * 6)]


def dequantise(rows, width, store):
    numbers = rows * width
    return [Launch("dequantise_rows", divide_up(numbers // 8, 128), read=rows * store_bytes(store, width), written=2 * numbers,
                   l2=rows * store_bytes(store, width), integer=numbers * 4, float32=numbers)]


def decode_tiles(tiles, widths):
    """A thread looks for a number's width, and takes its bits out byte by byte."""
    count = sum(widths.values())
    numbers = 32 * count
    return [Launch("decode_tiles", tiles, read=tiles * tile_code_bytes(widths), written=tiles * 4 * numbers, l2=tiles * numbers * 2,
                   integer=tiles * numbers * (8 * 3 + 4 * 8), float32=tiles * numbers, waits=2 * divide_up(numbers, 256))]


def row_cosines(rows, width):
    return [Launch("row_cosines", divide_up(rows, 4), read=4 * rows * width, written=4 * rows, l2=4 * rows * width,
                   float32=rows * width * 5, memory_waits=1 + divide_up(width, 128))]


def prompt_attention(tokens, chunk=2048, model=LLAMA):
    """LibTorch's attention of one layer, a prompt read in chunks (model/attention.cpp): causal flash attention for the first one;
    later ones in blocks of 512 queries with a mask, for which grouped queries leave float32 scores and repeated keys and values."""
    width = model.heads * model.head_dim
    launches = [Launch("scaled_dot_product_attention", 16 * model.heads, read=2 * 4 * chunk * width, product=2 * chunk**2 * width,
                       eager=True)]
    for last in range(chunk + 512, tokens + 1, 512):
        scores = 4 * model.heads * 512 * last
        launches.append(Launch("scaled_dot_product_attention", divide_up(512 * last, 1024), read=5 * scores + 2 * 4 * last * width,
                               written=3 * scores + 2 * 4 * last * width, float32_product=2 * 2 * 512 * last * width, launches=12,
                               eager=True))
    return launches


def prompt_products(tokens, model=LLAMA):
    """Operations of reading a prompt: products with all layers' weights, and causal attention."""
    return tokens * model.layers * (2 * model.layer_weights + 2 * tokens * model.heads * model.head_dim)


def request_basis(tokens, model=LLAMA, layers_per_group=4):
    """Directions of all groups' keys and values from a prompt: lower halves of float32 Gram matrices, float64 eigenpairs."""
    width = layers_per_group * model.kv_heads * model.head_dim
    matrices = 2 * model.layers // layers_per_group
    gram = Launch("mm", 132, read=4 * tokens * width * matrices, written=8 * width**2 * matrices,
                  float32_product=tokens * width**2 * matrices, launches=matrices * (width // 256 * 2), eager=True)
    return [gram, *eigenpairs(matrices, width)]


def eigenpairs(matrices, size):
    """cusolverDnXsyevd in float64, at best: tridiagonalisation reads what is left of the lower half for each column."""
    return [Launch("cusolverDnXsyevd", 132, read=matrices * 8 * size**3 / 6, float64_product=matrices * 16 / 3 * size**3, launches=matrices,
                   eager=True)]


def token_match(targets, donors, width=4096):
    """match_tokens(): float32 products of tiles of 512 by 1024 tokens, their maxima, and the choice between tiles."""
    tiles = divide_up(targets, 512) * divide_up(donors, 1024)
    return [Launch("mm", 132, read=4 * tiles * 512 * 1024, written=4 * tiles * 512 * 1024, l2=4 * tiles * (512 + 1024) * width,
                   float32_product=2 * targets * donors * width, launches=6 * tiles, eager=True)]


def fisher(sequences, tokens, model=LLAMA):
    """kvfisher: forwards, every layer again, and back to its input; of weights only keys' and values' gradients."""
    per_token = model.layers * (6 * model.layer_weights + 2 * 2 * model.hidden * model.kv_heads * model.head_dim) + 4 * model.head_weights
    attention = 2 * 2 * tokens / 2 * model.heads * model.head_dim * model.layers * 4.5
    return [Launch("mm", 132, read=sequences * 3 * model.weight_bytes, product=sequences * tokens * (per_token + attention),
                   launches=sequences * model.layers * 60, eager=True)]


def needed_fisher(sequences, tokens, model=LLAMA):
    """Operations of the products that no way of computing it can leave out: forwards, back, and the gradients of two weights."""
    per_token = model.layers * (4 * model.layer_weights + 2 * 2 * model.hidden * model.kv_heads * model.head_dim) + 4 * model.head_weights
    return sequences * tokens * per_token
