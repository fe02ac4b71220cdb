#!/usr/bin/env python3
"""The op library's codes in pages: what the ops of a GPU store, read and attend to, against the CPU's. Needs torch alone.

    ops.py LIBRARY DEVICE [--emulated] [--time]

LIBRARY: libkvconvert_ops.so. DEVICE: cuda, cuda:N; or cpu, whose ops are compared with themselves, or with --emulated with those of a
GPU, which the library has in an emulator. --time: measures shapes of an 8B model too. Prints one JSON object.
"""

import argparse
import json
import sys

import torch

TILE, PAGE_TILES = 32, 2
FORMS = {"rotated": 0, "pairs": 0, "blocks": 4, "keys": 1, "full": 1}  # bases of a head's keys; 0: one for each rotary pair
# Largest differences of numbers of order one in bfloat16: keys of rebuilt forms have weights rounded to integers on the CPU.
READ_TOLERANCE, ATTENTION_TOLERANCE, OTHER_BYTES = 0.1, 0.06, 1e-3
MOST_SCRATCH = 256 << 20
MANY_BITS, QUARTER_BITS = (8, 5, 6, 7), (6, 5, 5, 4, 4, 3, 3, 2)  # of coefficients in turn; the latter: kept 0.25


def widths_for(count, bits):
    coefficients = [0] * 9
    for i in range(count):
        coefficients[bits[i % len(bits)]] += 1
    return coefficients


def block_of(head, part, form, dim, bits, random):
    """The numbers and tensors that describe a block to the op open(). head: of keys or values, -1: keys and values of all."""
    bases = (FORMS[form] or dim // 2) if part == 1 else 1
    n, rotated, gain = dim * (2 if part == 0 else 1), form == "rotated" and part == 1, head % 2
    k = n - (5 if part == 2 else 0)
    width = n // bases
    square = torch.linalg.qr(torch.randn(bases, width, width, generator=random)).Q
    if rotated:
        square = torch.eye(width).expand(bases, width, width)
    pair = torch.arange(n // 2).view(bases, -1)
    channels = torch.cat((pair, pair + n // 2), 1) if bases > 1 else torch.arange(n)[None]
    basis, row = torch.arange(k) % bases, torch.arange(k) // bases
    columns, places = square[basis, row], channels[basis]
    scale = 0.5 + torch.rand(width, generator=random)
    encoder = torch.zeros(k, n).scatter(1, places, columns / scale)
    decoder = torch.zeros(k, n).scatter(1, places, columns * scale).t().contiguous()
    coefficients = widths_for(k, bits)
    widths = torch.tensor([b for b in range(8, 0, -1) for _ in range(coefficients[b])])
    mean, first = torch.randn(n, generator=random), 3 * torch.randn(n, generator=random)
    of_bases = channels.flatten().to(torch.int32) if bases > 1 else torch.empty(0, dtype=torch.int32)
    numbers = [head, part, bases, int(rotated), gain, *coefficients]
    return numbers, [encoder, decoder, mean, 6.0 / 2.0**widths, of_bases, first]


class Store:
    """Codes of one layer on the CPU. Equal shapes have equal factors."""

    def __init__(self, ops, form, dim, kv_heads, heads, positions, bits=MANY_BITS):
        self.ops, self.device = ops, torch.device("cpu")
        random = torch.Generator().manual_seed(1)
        parts = (0,) if form == "full" else (1, 2)
        described = [block_of(head, part, form, dim, bits, random) for part in parts for head in range(kv_heads)]
        angle = torch.arange(positions)[:, None].double() * 10000.0 ** (-torch.arange(dim // 2).double() / (dim // 2))
        self.angles = angle.cos().float(), angle.sin().float()
        self.arguments = ([1, heads, kv_heads, dim, 0, 0], torch.tensor([dim**-0.5, 0.0]), *self.angles,
                          [number for numbers, _ in described for number in numbers], [tensor for _, all in described for tensor in all])
        self.handle = ops.open(*self.arguments)
        self.tile_bytes = ops.tile_bytes(self.handle)

    def store(self, pages, slots, positions, keys, values):
        self.ops.store(self.handle, pages, slots, positions, [keys], [values])

    def read(self, pages, table, keys, values):
        self.ops.read(self.handle, 0, pages, table, 0, keys, values)

    def attend(self, out, query, pages, table, tokens, longest, *open_rows):
        self.ops.attend(self.handle, 0, out, query, pages, table, tokens, *open_rows)


class DeviceStore(Store):
    """The same by the ops of a GPU."""

    def __init__(self, ops, device, *shape):
        super().__init__(ops, *shape)
        self.device = torch.device(device)
        self.on_device = ops.open_device(*self.arguments)
        image = torch.empty(ops.device_image_bytes(self.on_device), dtype=torch.uint8)
        ops.device_image(self.on_device, image)
        self.fixed = [tensor.to(self.device) for tensor in (image, *self.angles)]

    def store(self, pages, slots, positions, keys, values):
        self.ops.store_device(self.on_device, *self.fixed, pages, slots, positions, [keys], [values])

    def read(self, pages, table, keys, values):
        self.ops.read_device(self.on_device, 0, *self.fixed, pages, table, 0, keys, values)

    def attend(self, out, query, pages, table, tokens, longest, *open_rows):
        self.ops.attend_device(self.on_device, 0, *self.fixed, out, query, pages, table, tokens, longest, MOST_SCRATCH, *open_rows)


def run_case(store, lengths, kv_heads, heads, dim):
    """Pages, rows and outputs on the CPU of sequences that are stored in two parts, and attended to with and without open tiles."""
    device, random = store.device, torch.Generator().manual_seed(2)
    of_page, most = TILE * PAGE_TILES, max(lengths)
    per_sequence = -(-most // of_page)
    tables = torch.randperm(len(lengths) * per_sequence, generator=random).view(len(lengths), -1).to(torch.int32)
    pages = torch.zeros(tables.numel(), PAGE_TILES * store.tile_bytes, dtype=torch.uint8).to(device)
    rows, outputs = [], []
    for length, table in zip(lengths, tables):
        keys, values = torch.randn(2, length, kv_heads, dim, generator=random).to(torch.bfloat16).unbind(0)
        positions = torch.arange(length)
        slots = table.long()[positions // of_page] * of_page + positions % of_page
        for part in (slice(0, length // 2 + 1), slice(length // 2 + 1, length)):
            if slots[part].numel():
                store.store(pages, *(tensor[part].to(device) for tensor in (slots, positions, keys, values)))
        read = [torch.empty(length, kv_heads, dim, dtype=torch.bfloat16, device=device) for _ in range(2)]
        store.read(pages, table.to(device), *read)
        rows += [part.cpu().float() for part in read]
    query = torch.randn(len(lengths), heads, dim, generator=random).to(torch.bfloat16).to(device)
    exact = torch.randn(2, 2 * len(lengths), TILE, kv_heads, dim, generator=random).to(torch.bfloat16).to(device).unbind(0)
    tokens, numbers = (torch.tensor(part, dtype=torch.int32, device=device) for part in (lengths, range(2 * len(lengths))))
    of_two = numbers.view(-1, 2)
    for open_rows in ((*exact, of_two[:, 1:].contiguous()), (*exact, of_two), (torch.empty(0), torch.empty(0), torch.empty(0))):
        out = torch.empty_like(query)
        store.attend(out, query, pages, tables.to(device), tokens, most, *open_rows)
        outputs.append(out.cpu().float())
    return pages.cpu(), rows, outputs


def compare(ops, device, has_device):
    found = []
    for form in FORMS:
        for dim, kv_heads, heads in ((32, 2, 6), (128, 2, 8)):
            shape = (form, dim, kv_heads, heads, 512)
            host = Store(ops, *shape)
            own = DeviceStore(ops, device, *shape) if has_device else host
            lengths = (1, 33, 100, 300) if dim == 32 or device != "cpu" else (1, 40)
            found_own, found_host = (run_case(store, lengths, kv_heads, heads, dim) for store in (own, host))

            def largest(index):
                return torch.stack([(a - b).abs().max() for a, b in zip(found_own[index], found_host[index])]).max().item()  # NaN, if one is

            row = {"form": form, "head_dim": dim, "other_bytes": (found_own[0] != found_host[0]).float().mean().item(), "read": largest(1),
                   "attention": largest(2)}
            row["passed"] = row["other_bytes"] <= OTHER_BYTES and row["read"] <= READ_TOLERANCE and row["attention"] <= ATTENTION_TOLERANCE
            found.append(row)
    return found


def median_ms(run, rounds=30):
    """Of the GPU's own clock."""
    times = []
    for _ in range(rounds + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[5:])[rounds // 2]


LAYERS = 10  # that take turns, so that none finds its pages in L2


def times_of(run):
    """Milliseconds of run(layer) by itself, and as part of a CUDA graph, where no launch waits for the CPU."""
    graph = torch.cuda.CUDAGraph()
    by_call = median_ms(lambda: run(0))
    with torch.cuda.graph(graph):
        for layer in range(LAYERS):
            run(layer)
    return {"ms": median_ms(graph.replay) / LAYERS, "call_ms": by_call}


def measure(ops, device):
    """Times of one layer of an 8B model, 32 query heads and 8 KV heads of 128, by the names of bench/gpu_costs.py."""
    found = []
    for form in ("rotated", "blocks", "full"):
        for sequences, length in ((1, 16384), (32, 2048)):
            store = DeviceStore(ops, device, form, 128, 8, 32, 16384, QUARTER_BITS)
            per_sequence = length // TILE // PAGE_TILES
            tables = torch.arange(sequences * per_sequence, dtype=torch.int32, device=device).view(sequences, -1)
            pages = torch.zeros(LAYERS, tables.numel(), PAGE_TILES * store.tile_bytes, dtype=torch.uint8, device=device)
            kind = {"dtype": torch.bfloat16, "device": device}
            keys, values = torch.randn(2, length, 8, 128, **kind).unbind(0)
            positions = torch.arange(length, device=device)
            query, tokens = torch.randn(sequences, 32, 128, **kind), torch.full((sequences,), length, dtype=torch.int32, device=device)
            exact = torch.randn(2, sequences, TILE, 8, 128, **kind).unbind(0)
            out, read = torch.empty_like(query), torch.empty_like(torch.stack((keys, values)))
            numbers = torch.arange(sequences, dtype=torch.int32, device=device)
            dense = torch.randn(LAYERS, 2, sequences, 8, length, 128, **kind)
            shape = f"({sequences}, {length // 1024}k)"
            runs = {
                f"attend {shape}": lambda i: store.attend(out, query, pages[i], tables, tokens, length, *exact, numbers[:, None]),
                f"code a step's tokens {shape}": lambda i: store.store(pages[i], positions[:sequences] * TILE, positions[:sequences],
                                                                       keys[:sequences], values[:sequences]),
                f"code a prompt of {length}": lambda i: store.store(pages[i], positions, positions, keys, values),
                f"read {length}": lambda i: store.read(pages[i], tables[0], *read),
                f"attention of torch over bfloat16 {shape}": lambda i: torch.nn.functional.scaled_dot_product_attention(
                    query[:, :, None], *dense[i], enable_gqa=True)}
            found += [{"name": f"serve {form}, {name}", **times_of(run)} for name, run in runs.items()]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("device")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    torch.ops.load_library(options.library)
    ops = torch.ops.kvconvert
    has_device = options.device != "cpu" or options.emulated
    if has_device and not hasattr(ops, "open_device"):
        parser.exit(1, f"ops.py: error: {options.library} was built without CUDA; build with -DKVC_CUDA=ON\n")
    report = {"torch": torch.__version__, "has_device_ops": has_device, "cases": compare(ops, options.device, has_device)}
    if options.time:
        report["results"] = measure(ops, options.device)
    report["passed"] = all(case["passed"] for case in report["cases"])
    print(json.dumps(report))
    for case in report["cases"]:
        if not case["passed"]:
            print(f"ops.py: error: the device's ops differ from the CPU's: {case}", file=sys.stderr)
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
