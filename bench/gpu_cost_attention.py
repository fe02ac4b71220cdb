"""What the attention kernels of runtime/kernels/cuda move and compute, as their sources say. Every function lists launches."""

from gpu_cost_model import LANES, MMA, Launch, attention_parts, divide_up, resident_blocks, round_up

WAVEFRONT = 128  # bytes: one access of a warp to shared memory, however few of the banks it needs
CODE_BYTES = {"bfloat16": 2, "float8": 1, "int8": 1, "int4": 0.5}
# A lane's work on a tile's softmax (soften() of attention_tiles.h): eight scores of scaling, maximum, exponential and sum.
SOFTMAX = 8 * 5
# To levels (unpack_levels() of code_levels.h), of a lane: for a plane of bits three shifts, four masks and two more to find and
# test it, and four products; for a group of eight coefficients finding it, its descriptor and its end, and four sums.
PLANE_INTEGER, PLANE_FLOAT32, GROUP_INTEGER, GROUP_FLOAT32 = 9, 4, 10, 4
# What a lane of coded_attention runs, (all instructions, those on integers), by its machine code for sm_90a:
# a tile: its copies, angles, a group of means, scales, the softmax and weights for every kind of plane;
CODED_TILE = (492, 132)
# of keys, a width, a step of two groups, and planes of eight coefficients by their bits: two loads, one to join them, four masks,
# of four bits a shift, and half of two products;
KEY_WIDTH, KEY_STEP, KEY_PLANES = (12, 6), (9, 5), {8: (11, 8), 4: (9, 6), 2: (8, 5), 1: (8, 5)}
# of values, a pair of groups, and planes: the place, a load, one to spread it, four masks and half of two products;
VALUE_PAIR, VALUE_PLANES = (18, 7), {8: (13.5, 9), 4: (9.5, 6), 2: (10, 6), 1: (10.5, 5)}
# of keys that are turned, a group, and a plane.
TURNED_GROUP, TURNED_PLANE = (80, 16), (22, 14)
QUARTER_WIDTHS = {2: 16, 3: 32, 4: 32, 5: 32, 6: 16}  # coefficients of a head's keys or values by bits: kept 0.25
# What a lane of dense_attention over codes runs, likewise, for a tile of 128 channels: softmax, pages, the loop, and cosines and sines of
# the first token; copies of keys or of values; a slot of 32 channels of keys, raw ones before RoPE and others; all values.
CODES_TILE = (470, 175)
CODES_COPY = {"float8": (75, 50), "int8": (97, 63), "int4": (71, 42)}
CODES_SLOT = {"float8": (230, 110), "int8": (311, 77), "int4": (319, 83)}
CODES_VALUES = {"float8": (780, 360), "int8": (520, 253), "int4": (520, 253)}


def store_bytes(store, width):
    """Of a row of keys or of values, with scales and minima of 32 numbers each."""
    return CODE_BYTES[store] * width + (width / 8 if store in ("int8", "int4") else 0)


def dense(gpu, shape, store="bfloat16", sources=1):
    """dense_attention or fused_attention, and combine_partials."""
    dim, codes, raw = shape.head_dim, store != "bfloat16", store in ("int8", "int4")
    pairs = dim // 2 if raw else 0  # that are turned
    tile_bytes = 32 * (dim + 16) + 4 * dim if codes else 2 * 32 * (dim + 8)
    warp_bytes = 2 * (2 * sources * tile_bytes + 8 * pairs)
    distance_bytes = 2 * 32 * 4 * (pairs + 16) if raw else 0
    block_bytes = distance_bytes + (16 * dim * shape.query_tiles * sources if codes else 0)
    warps = 4 if sources == 2 or codes else 2
    while warps > 1 and block_bytes + warps * warp_bytes > gpu.block_shared:
        warps -= 1
    blocks_at_once = resident_blocks(block_bytes + warps * warp_bytes, 32 * warps, 168 if codes else 140)
    parts = attention_parts(gpu, shape.sequences * shape.kv_heads, shape.tokens)
    row_bytes = 2 * sources * store_bytes(store, shape.width)
    integer, float32 = 0, SOFTMAX * shape.query_tiles + 4 * sources * (dim // 16) * shape.query_tiles
    shared = 4 * sources * 2 * 32 * dim  # keys and values: copied to, and read as fragments
    l2 = 0
    issued = 0
    if codes:
        slots = dim // 32
        parts_of_tile = [(1, CODES_TILE), *sources * [(2, CODES_COPY[store]), (slots, CODES_SLOT[store]), (1, CODES_VALUES[store])]]
        issued, integer = (sum(count * part[i] for count, part in parts_of_tile) for i in range(2))
        # Behind the copies: keys' codes, their scales, cosines and sines of distances and of the first token, the query; then
        # matrices of values and their scales.
        wavefronts = slots * (8 + (8 + 8 * 4 + 2 if raw else 0) + 4 * shape.query_tiles) + dim // 16 * (4 + (3 if raw else 0))
        shared = sources * (WAVEFRONT * wavefronts + 64 * store_bytes(store, dim)) + 8 * pairs
        float32 += sources * 2 * dim * (1 + (1 + 2 if raw else 1))
        l2 += shape.head_tiles * 8 * pairs + parts * shape.kv_heads * shape.sequences * 2 * 32 * 4 * pairs
    partials = shape.sequences * parts * shape.heads * (dim + 2) * 4
    return [Launch("fused_attention" if sources == 2 else "dense_attention", parts * shape.kv_heads * shape.sequences,
                   read=shape.rows * row_bytes, written=partials, l2=shape.rows * row_bytes + l2,
                   tensor=MMA * shape.head_tiles * sources * shape.query_tiles * 4 * (dim // 16),
                   integer=LANES * shape.head_tiles * integer, float32=LANES * shape.head_tiles * float32,
                   issued=LANES * shape.head_tiles * issued, shared=shape.head_tiles * shared,
                   waits=1, memory_waits=2,  # the length, the page's address, its rows
                   in_flight=blocks_at_once * warps * 64 * sources * store_bytes(store, dim)),
            combine(shape, parts, dim)]


def combine(shape, parts, width):
    """A block of eight warps has 128 channels. Its threads load a part's maximum and sum each; then a warp loads the outputs of eight
    parts at a time. Barriers between, and sums of the warps' numbers, are as long as two such loads."""
    blocks = shape.heads * shape.sequences * divide_up(width, 128)
    outputs = shape.sequences * parts * shape.heads * width * 4
    return Launch("combine_partials", blocks, written=shape.sequences * shape.heads * width * 4, l2=outputs + blocks * parts * 2 * 4,
                  waits=divide_up(parts, 256) + divide_up(parts, 8 * 8) + 2)


def project(shape, rank, width):
    """A warp's channel reads its row of the projection and the sums of all query heads of its KV head, which a block's warps share."""
    blocks = divide_up(shape.head_dim, 4) * shape.kv_heads * shape.sequences
    projection = 2 * shape.width * width
    return Launch("project_values", blocks, read=projection, written=4 * shape.sequences * shape.heads * shape.head_dim,
                  l2=shape.sequences * projection + 4 * blocks * shape.heads // shape.kv_heads * rank, waits=1 + divide_up(rank, 32),
                  float32=LANES * blocks * 4 * divide_up(rank, 32) * 8)


def planes(widths):
    """Of all coefficients, in groups of eight: planes of 8, 4, 2 and 1 bits; and the groups."""
    groups = {bits: divide_up(count, 8) for bits, count in widths.items()}
    return sum(bin(bits).count("1") * count for bits, count in groups.items()), sum(groups.values())


def planes_by_bits(widths):
    return {plane: sum(divide_up(count, 8) for bits, count in widths.items() if bits & plane) for plane in (8, 4, 2, 1)}


def coded_instructions(turned, values):
    """Of a lane for a tile: all, and those on integers."""
    groups = sum(divide_up(count, 8) for count in QUARTER_WIDTHS.values())
    by_bits = planes_by_bits(QUARTER_WIDTHS)
    parts = [(1, CODED_TILE)]
    if turned:
        parts += [(groups, TURNED_GROUP), (sum(by_bits.values()), TURNED_PLANE)]
    else:
        parts += [(len(QUARTER_WIDTHS), KEY_WIDTH), (sum(divide_up(count, 16) for count in QUARTER_WIDTHS.values()), KEY_STEP)]
        parts += [(count, KEY_PLANES[plane]) for plane, count in by_bits.items()]
    if values:
        parts += [(divide_up(groups, 2), VALUE_PAIR)] + [(count, VALUE_PLANES[plane]) for plane, count in by_bits.items()]
    return [sum(count * part[i] for count, part in parts) for i in range(2)]


def tile_code_bytes(widths):
    return sum(4 * bits * count for bits, count in widths.items())


def met_codes(gpu, shape, turned=False, whole=False):
    """coded_attention over codes that meet the query: of `rotated`, or, turned, of `pairs`. whole: one block of values for all KV
    heads, whose levels sum_ranks sums."""
    dim, tiles = shape.head_dim, shape.head_tiles
    of_planes, groups = planes(QUARTER_WIDTHS)
    key_bytes = tile_code_bytes(QUARTER_WIDTHS)
    bytes_of_tile = key_bytes * (1 if whole else 2)
    instructions, integer = coded_instructions(turned, values=not whole)
    mma = (2 * groups if turned else of_planes) + 2  # keys, and a group of means
    float32 = SOFTMAX + groups * (8 + 4) + 3 * 8
    # Places, products and codes of keys, two loads a plane; those of planes of four bits in five meet twice on banks.
    wavefronts = 2 * of_planes + groups + 8 + 2 * QUARTER_WIDTHS[5] // 8
    if turned:
        float32 = of_planes * PLANE_FLOAT32 + groups * (GROUP_FLOAT32 + 8 + 4) + SOFTMAX
        wavefronts = 2 * of_planes + groups * (1 + 4) + groups * (2 * 4 + 4)
    if not whole:
        mma += of_planes + 2  # and sums of weights
        float32 += groups * 2 + of_planes + 5 * 4
        wavefronts += of_planes // 2 + of_planes + groups // 2 + (QUARTER_WIDTHS[5] + QUARTER_WIDTHS[6]) // 8
    angles = 8 * (dim // 2)  # cosines and sines of a tile's first token
    parts = attention_parts(gpu, shape.sequences * shape.kv_heads, shape.tokens)
    scratch = shape.tiles * shape.heads * (2 * 32 + 8)
    partials = shape.sequences * parts * shape.heads * (dim + 2) * 4
    attention = Launch("coded_attention", parts * shape.kv_heads * shape.sequences, read=tiles * bytes_of_tile,
                       written=scratch if whole else partials, l2=tiles * (bytes_of_tile + angles), tensor=MMA * tiles * mma,
                       integer=LANES * tiles * integer, float32=LANES * tiles * float32, issued=LANES * tiles * instructions,
                       shared=tiles * (WAVEFRONT * wavefronts + bytes_of_tile + angles))
    if whole:
        widths = {bits: shape.kv_heads * count for bits, count in QUARTER_WIDTHS.items()}
        return [attention, *sum_ranks(gpu, shape, shape.width, widths=widths)]
    return [attention, combine(shape, parts, dim), project(shape, dim, dim)]


def decoded(widths, chunk_rows):
    """For a warp that decodes 32 coefficients of 32 tokens (TileCodes::decode of attention_rank_source.h): a lane has eight tokens
    of every eighth coefficient, each of which it looks for among the widths."""
    of_planes, _ = planes(widths)
    coefficients = sum(widths.values())
    a_plane = of_planes * 8 / coefficients  # planes of a coefficient
    rows = chunk_rows // 8
    integer = rows * (8 * 3 + a_plane * PLANE_INTEGER + GROUP_INTEGER + 8)
    float32 = rows * (a_plane * PLANE_FLOAT32 + GROUP_FLOAT32)
    shared = WAVEFRONT * rows * (a_plane + 4)
    return integer, float32, shared


def rebuild(shape, rank, pairs=64, stored=0, widths=None, codes_of=1):
    """rebuild_scores. Every KV head's blocks read its latents or codes, and its projection once for 256 tokens. codes_of: blocks of
    codes, which KV heads share."""
    chunks, pair_tiles = divide_up(rank, 32), pairs // 8
    tiles = shape.head_tiles
    blocks = shape.sequences * divide_up(divide_up(shape.tokens, 32), 8) * shape.kv_heads
    projection = 2 * 2 * pairs * round_up(rank, 32)
    stored_tiles = divide_up(stored, 8)
    mma = chunks * 2 * 2 * 2 * pair_tiles + 2 * pair_tiles + 2 * stored_tiles
    tile_bytes = tile_code_bytes(widths) if widths else 2 * 32 * rank
    of_memory = shape.tiles * codes_of * tile_bytes  # what KV heads share stays in L2 for the others
    shared = chunks * (2 * (2 + pair_tiles) * 512 + 2 * 32 * 32) + chunks * 2 * 2 * pairs * 64 / 8
    # Cosines and sines of every token, pair and KV head; stored numbers, two bytes at a time out of sectors of 32.
    angles = 32 * 8 * (pairs + 8 * stored_tiles)
    integer, float32 = 4 * pairs, 4 * pairs * 4 + SOFTMAX
    if widths:
        more = decoded(widths, 32)
        integer, float32, shared = integer + chunks * more[0], float32 + chunks * more[1], shared + chunks * more[2]
    return Launch("rebuild_scores", blocks, read=of_memory + projection * shape.kv_heads, written=shape.tiles * shape.heads * (2 * 32 + 8),
                  l2=tiles * (tile_bytes + angles + 32 * 4 * stored) + blocks * projection, tensor=MMA * tiles * mma,
                  integer=LANES * tiles * integer, float32=LANES * tiles * float32, shared=tiles * shared)


def sum_ranks(gpu, shape, rank, widths=None, codes_of=1):
    """sum_ranks, combine_partials and project_values. codes_of: blocks of values, which KV heads share. 64 latents a warp."""
    width = round_up(rank, 32)
    heads = shape.heads // codes_of
    query_tiles = next(n for n in (1, 2, 4) if heads <= 8 * n or n == 4)
    head_chunks = codes_of * divide_up(heads, 8 * query_tiles)
    parts = attention_parts(gpu, shape.sequences * codes_of * divide_up(width, 256), shape.tokens)
    chunks = divide_up(rank, 32)
    tiles = shape.tiles * head_chunks
    tile_bytes = tile_code_bytes(widths) if widths else 2 * 32 * rank
    # A block's warps read the weights of its heads together.
    weights = divide_up(width, 256) * (2 * 32 + 2 * 4) * 8 * query_tiles
    integer, float32, shared = 8 * query_tiles, 16 * query_tiles, 2 * 32 * 32 * 2
    if widths:
        more = decoded(widths, 32)
        integer, float32, shared = integer + more[0], float32 + more[1], shared + more[2]
    sums = Launch("sum_ranks", parts * divide_up(width, 256) * shape.sequences * head_chunks,
                  read=shape.tiles * codes_of * tile_bytes + shape.tiles * shape.heads * (2 * 32 + 8),
                  written=shape.sequences * parts * shape.heads * (width + 2) * 4, l2=tiles * (tile_bytes + weights),
                  tensor=MMA * tiles * chunks * 4 * query_tiles, integer=LANES * tiles * chunks * integer,
                  float32=LANES * tiles * chunks * float32, shared=tiles * chunks * shared)
    return [sums, combine(shape, parts, width), project(shape, rank, width)]


def latents(gpu, shape, key_rank, value_rank, pairs=64, stored=0):
    """Of latents: rebuild_scores, sum_ranks, and what makes values of its sums."""
    return [rebuild(shape, key_rank, pairs, stored), *sum_ranks(gpu, shape, value_rank)]


def codes(gpu, shape, widths, codes_of):
    """Keys rebuilt and values summed, both from codes: of KV heads' blocks or, codes_of 1, of the layer's."""
    rank = sum(widths.values())
    return [rebuild(shape, rank, widths=widths, codes_of=codes_of), *sum_ranks(gpu, shape, rank, widths=widths, codes_of=codes_of)]
