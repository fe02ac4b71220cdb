"""What the kernels for codes in an engine's pages move and compute (runtime/kernels/cuda/paged_*.h), for `rotated`: a block of
codes for the keys and one for the values of every KV head."""

from gpu_cost_attention import QUARTER_WIDTHS, combine, met_codes, project, tile_code_bytes
from gpu_cost_model import LANES, Launch, divide_up

COEFFICIENTS = sum(QUARTER_WIDTHS.values())
STAGED = 64  # channels or coefficients in shared memory at a time


def code_tokens(shape, tokens, runs):
    """encode_tokens and store_codes. runs: tiles that the tokens are in."""
    dim, blocks = shape.head_dim, 2 * shape.kv_heads
    chunks, held = divide_up(tokens, 32), 8 * divide_up(min(tokens, 32), 8)
    rows, factors, z = 2 * tokens * 2 * shape.width, 4 * blocks * dim * COEFFICIENTS, 4 * tokens * blocks * COEFFICIENTS
    # A number takes some 40 operations until it is staged, of keys with those of its angle; then a thread multiplies it with its weight,
    # for which a warp reads four tokens at a time. A stage waits for numbers and for weights.
    staged = chunks * blocks * dim * 32
    encode = Launch("encode_tokens", chunks * blocks, read=rows + factors, written=z, l2=chunks * factors + 3 * rows,
                    float32=chunks * blocks * dim * 128 * held + 20 * staged, integer=20 * staged,
                    shared=chunks * blocks * dim * (4 * held // 4 * 128 + 32 * 16), memory_waits=2 * divide_up(dim, STAGED), waits=2)
    # Eight gains of each coefficient, then words of codes, whose bits are made twice: of the tokens and of their mask.
    words = sum(bits * count for bits, count in QUARTER_WIDTHS.items())
    codes = 32 * sum(bin(bits).count("1") * count for bits, count in QUARTER_WIDTHS.items())
    warps = runs * blocks
    store = Launch("store_codes", divide_up(tokens, 4) * blocks, read=z, written=warps * 4 * words, l2=3 * z + warps * 4 * words,
                   float32=tokens * blocks * COEFFICIENTS * 8 * 12 + warps * codes * 8, integer=warps * codes * 16,
                   waits=2 + min(tokens, 32) // 4 + divide_up(words, LANES) * 2)
    return [encode, store]


def read_tokens(shape, tokens):
    """A chunk of coefficients takes a look for its place in the tile, planes byte by byte, and a weight for every channel."""
    dim, chunks, parts = shape.head_dim, divide_up(tokens, 32), 2 * shape.kv_heads
    held = 8 * divide_up(min(tokens, 32), 8)
    factors, codes = 4 * parts * dim * COEFFICIENTS, chunks * parts * tile_code_bytes(QUARTER_WIDTHS)
    levels = chunks * parts * 32 * COEFFICIENTS
    return Launch("read_tokens", chunks * parts, read=codes + factors, written=2 * tokens * parts * dim, l2=chunks * factors + codes,
                  integer=levels * 50, float32=chunks * parts * COEFFICIENTS * 128 * held + levels * 2,
                  shared=chunks * parts * COEFFICIENTS * 4 * held // 4 * 128, memory_waits=2 * divide_up(COEFFICIENTS, STAGED), waits=3)


def attention_step(gpu, shape):
    """attend of the ops, for sequences whose first token has a mean of its own."""
    pages = shape.sequences * divide_up(shape.tokens, 64) * 2 * shape.kv_heads
    place = Launch("place_pages", shape.sequences * 2 * shape.kv_heads, read=shape.sequences * divide_up(shape.tokens, 64) * 4,
                   written=8 * pages, integer=pages * 60, waits=2 * divide_up(divide_up(shape.tokens, 64), 256) + 1)
    exact = 2 * 2 * 32 * shape.width * shape.sequences
    first = read_tokens(shape, 1)
    first = Launch("read_tokens", first.blocks * shape.sequences, read=first.read, l2=first.l2 * shape.sequences, written=first.written
                   * shape.sequences, integer=first.integer * shape.sequences, float32=first.float32 * shape.sequences,
                   shared=first.shared * shape.sequences, memory_waits=first.memory_waits, waits=first.waits)
    heads = shape.sequences * shape.heads
    opened = Launch("attend_open", divide_up(shape.heads, 4) * shape.sequences, read=exact, written=4 * heads * (shape.head_dim + 2),
                    l2=exact * shape.heads // shape.kv_heads, float32=heads * 33 * shape.head_dim * 2 * 2, memory_waits=2,
                    waits=shape.head_dim // 16 + 8)
    return [place, first, opened, *met_codes(gpu, shape)[:1], combine(shape, 16, COEFFICIENTS), project(shape, COEFFICIENTS, COEFFICIENTS),
            combine(shape, 2, shape.head_dim)]
