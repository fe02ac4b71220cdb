"""Times that follow from what launches move and compute, and a GPU's figures: the largest of the bounds, one launch after the other."""

import dataclasses
import math

LANES = 32
MMA = 2 * 16 * 8 * 16  # operations of one mma.m16n8k16, the fragments' padding included
# Threads, and bytes of shared memory, that a multiprocessor of sm_90 has for blocks; 1 KiB of every block is the system's.
MULTIPROCESSOR_SHARED = 228 * 1024
REGISTERS = 65536


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Rates are what kernels reach, not peaks. Those of all multiprocessors follow from one's, a clock.

    Sources: copying and products of the H200 and the H100, docs/benchmarks.md; mma.sync against wgmma, L2 (5.5 TB/s of an H100 of
    114 multiprocessors at this clock) and the latencies, published measurements; operations a clock, the CUDA C++ programming
    guide's table for 9.0. Latencies and a launch are round figures."""

    name: str
    copy_rate: float  # bytes a second, read and written
    product_rate: float = 790e12  # a library's product of bfloat16 numbers
    float32_product_rate: float = 60e12
    float64_product_rate: float = 60e12
    multiprocessors: int = 132
    clock: float = 1.755e9
    mma_sync_share: float = 0.62  # of the library's rate
    l2_rate: float = 6.4e12
    launch: float = 1.5e-6  # from one kernel of a graph to the next
    eager_launch: float = 4e-6  # of LibTorch
    memory_latency: float = 0.7e-6
    l2_latency: float = 0.15e-6
    block_shared: int = 227 * 1024
    atomic: float = 40  # clocks of one addition of 64 bits to a number in shared memory that all threads add to

    def per_second(self, per_clock):
        return per_clock * self.clock * self.multiprocessors

    @property
    def shared_rate(self):
        return self.per_second(128)

    @property
    def integer_rate(self):
        """Shifts, logic, additions, conversions."""
        return self.per_second(64)

    @property
    def float32_rate(self):
        """Additions, products and both at once; pairs of float16; integers' products."""
        return self.per_second(128)

    @property
    def issue_rate(self):
        """Instructions of any kind, of lanes: a warp's a clock for each of four schedulers."""
        return self.per_second(128)


GPUS = {"h200": Gpu("H200", 4.3e12), "h100": Gpu("H100", 3.0e12)}


@dataclasses.dataclass(frozen=True)
class Launch:
    """What all of a kernel's blocks move and compute. Operations count every lane, whether it has something to do or not."""

    kernel: str  # its kName, or LibTorch's function
    blocks: int
    read: float = 0  # bytes of memory
    written: float = 0
    l2: float = 0  # bytes that multiprocessors read, those of memory among them
    tensor: float = 0  # operations of mma.sync fragments
    product: float = 0  # operations of a library's bfloat16 products
    float32_product: float = 0
    float64_product: float = 0
    integer: float = 0
    float32: float = 0
    issued: float = 0  # instructions of any kind; 0: not counted, what else bounds the kernel leaves room
    shared: float = 0  # bytes: 128 for every access of a warp to one row of banks
    in_flight: float = 0  # bytes that a multiprocessor's blocks have asked for at any time; 0: enough
    waits: float = 0  # loads from L2 that wait for one another in the longest block
    memory_waits: float = 0  # likewise from memory
    atomics: float = 0  # one after the other
    launches: float = 1  # 0: goes on in the launch before
    eager: bool = False  # launched by LibTorch

    def bounds(self, gpu):
        """Seconds, by what bounds."""
        # Blocks are dealt out to multiprocessors: the last ones may leave some idle.
        busy = self.blocks / (gpu.multiprocessors * math.ceil(self.blocks / gpu.multiprocessors))
        used = min(1.0, self.blocks / gpu.multiprocessors)
        flying = gpu.multiprocessors * used * self.in_flight
        return {
            "memory": (self.read + self.written) / gpu.copy_rate,
            "L2": self.l2 / gpu.l2_rate,
            "tensor": self.tensor / (gpu.product_rate * gpu.mma_sync_share * busy),
            "library": self.product / gpu.product_rate + self.float32_product / gpu.float32_product_rate
            + self.float64_product / gpu.float64_product_rate,
            "integer": self.integer / (gpu.integer_rate * busy),
            "float32": self.float32 / (gpu.float32_rate * busy),
            "issue": self.issued / (gpu.issue_rate * busy),
            "shared": self.shared / (gpu.shared_rate * busy),
            "in flight": self.read * gpu.memory_latency / flying if flying else 0.0,
            "waits": self.waits * gpu.l2_latency + self.memory_waits * gpu.memory_latency + self.atomics * gpu.atomic / gpu.clock,
        }

    def launching(self, gpu):
        """Seconds besides: LibTorch queues its kernels while others run, so that only what is too short for that waits."""
        if not self.eager:
            return self.launches * gpu.launch
        return max(0.0, self.launches * gpu.eager_launch - max(self.bounds(gpu).values()))

    def seconds(self, gpu):
        return max(self.bounds(gpu).values()) + self.launching(gpu)


def seconds_of(launches, gpu):
    return sum(launch.seconds(gpu) for launch in launches)


def bound_of(launches, gpu):
    """What takes most of the time: a bound, or launching."""
    times = {"launches": 0.0}
    for launch in launches:
        bound, seconds = max(launch.bounds(gpu).items(), key=lambda item: item[1])
        times[bound] = times.get(bound, 0.0) + seconds
        times["launches"] += launch.launching(gpu)
    return max(times, key=times.get)


def divide_up(count, by):
    return -(-int(count) // int(by))


def round_up(count, step):
    return divide_up(count, step) * step


def resident_blocks(shared, threads, registers):
    """Blocks that a multiprocessor holds at a time."""
    by_shared = MULTIPROCESSOR_SHARED // (shared + 1024)
    by_registers = REGISTERS // (round_up(registers, 8) * threads)
    return max(1, min(by_shared, by_registers, 2048 // threads))


@dataclasses.dataclass(frozen=True)
class Shape:
    """One layer's attention of one new token each of `sequences`, behind `tokens`. Heads as Llama-3.1-8B has them."""

    sequences: int
    tokens: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def width(self):
        return self.kv_heads * self.head_dim

    @property
    def rows(self):
        return self.sequences * self.tokens

    @property
    def tiles(self):
        """Of 32 tokens, of all sequences."""
        return self.sequences * divide_up(self.tokens, 32)

    @property
    def head_tiles(self):
        return self.tiles * self.kv_heads

    @property
    def query_tiles(self):
        """Of eight query heads of a KV head."""
        return divide_up(self.heads // self.kv_heads, 8)

    @property
    def name(self):
        return f"({self.sequences}, {self.tokens // 1024}k)"


def attention_parts(gpu, blocks_per_part, tokens):
    """attention_parts() of attention_combine.h."""
    places = 3 * gpu.multiprocessors

    def used(parts):
        rounds = divide_up(parts * blocks_per_part, places)
        return parts * blocks_per_part / (rounds * places) - 0.05 * rounds

    return max(range(1, max(1, min(tokens // 64, 4 * places // blocks_per_part)) + 1), key=used)
