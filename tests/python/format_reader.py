"""docs/format.md in numpy: reads a converted directory, codes keys and values, packs tiles, and decodes them. It uses nothing
of the product, so that it shows what the page alone suffices for."""

import json
import pathlib

import numpy as np
from safetensors.numpy import load_file

TILE = 32
GAINS = np.array([0.5, 0.70710678, 1, 1.41421356, 2, 4, 8, 16])
UNIT_GAIN = 2


class Directory:
    """config.json and the tensors of a converted directory."""

    def __init__(self, path):
        path = pathlib.Path(path)
        self.config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        self.plan = self.config["kvconvert"]["plan"]
        self.tensors = {}
        for file in sorted(path.glob("*.safetensors")):
            self.tensors |= load_file(file)

    def get(self, name):
        return self.tensors[name].astype(np.float64)

    def matrix(self, name, axis):
        """A matrix of numbers, or of 8-bit codes with a scale for every index of `axis`, the coefficients'."""
        numbers = self.get(name)
        if self.tensors[name].dtype != np.int8:
            return numbers
        numbers = np.moveaxis(numbers, axis, 0)
        if name + ".low" in self.tensors:
            low = np.moveaxis(self.get(name + ".low"), axis, 0)
            numbers[:len(low)] += low / 256
        return np.moveaxis(numbers * self.get(name + ".scale")[:, None], 0, axis)

    def blocks(self):
        return [CodedBlock(self, number, spec) for number, spec in enumerate(self.plan.get("coded", []))]


def rope(rows, positions, theta):
    """Keys [T, head_dim] at positions [T]; default RoPE over all channels."""
    half = rows.shape[1] // 2
    angle = positions[:, None] * theta ** (-np.arange(half) / half)
    first, second = rows[:, :half], rows[:, half:]
    return np.concatenate((first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)), 1)


class CodedBlock:
    """What is coded together: E [k, n], F [n, k], means [n], steps and widths [k]."""

    def __init__(self, directory, number, spec):
        prefix = f"kvconvert.coded.{number}."
        self.layers = range(spec["first_layer"], spec["first_layer"] + spec["num_layers"])
        plan = directory.plan
        self.heads = range(plan["num_kv_heads"]) if spec["head"] is None else [spec["head"]]
        self.parts = {"both": "kv", "keys": "k", "values": "v"}[spec.get("part", "both")]
        self.rotated, self.gain = spec.get("rotated", False), spec["gain"]
        self.widths = np.array([bits for bits in range(8, 0, -1) for _ in range(spec["coefficients"][bits])], dtype=int)
        self.steps, self.mean = directory.get(prefix + "steps"), directory.get(prefix + "mean")
        codes_first = plan["policy"]["prefill"] == "coded" and plan["policy"]["sink_tokens"] == 0
        self.first = directory.get(prefix + "first") if codes_first else None
        if prefix + "decoder_codes" in directory.tensors:
            self.encoder, self.decoder = self._basis_codes(directory, prefix)
        else:
            self.encoder, self.decoder = directory.matrix(prefix + "encoder", 0), directory.matrix(prefix + "decoder", 1)
            if spec.get("bases", 1) > 1:
                self._spread(directory.get(prefix + "basis").astype(int), spec["bases"])
        self.encoder = _rounded(self.encoder.astype(np.float32))

    def _basis_codes(self, directory, prefix):
        k = len(self.steps)
        columns = directory.get(prefix + "decoder_codes")
        if prefix + "decoder_low" in directory.tensors:
            low = directory.get(prefix + "decoder_low")
            columns[:, :low.shape[1]] += low / 256
        columns = columns * directory.get(prefix + "decoder_scale")
        scale = directory.get(prefix + "channel_scale")
        if prefix + "encoder_codes" in directory.tensors:
            rows = directory.get(prefix + "encoder_codes")
            encoder = np.linalg.solve(rows @ columns, rows)
        else:
            encoder = np.linalg.inv(columns)[:k]
        return encoder / scale, columns[:, :k] * scale[:, None]

    def _spread(self, basis, bases):
        """Matrices over all channels, from those over the channels of one basis each."""
        n = len(self.mean)
        channels = np.concatenate((np.arange(n // 2).reshape(bases, -1), np.arange(n // 2, n).reshape(bases, -1)), 1)
        encoder, decoder = np.zeros((len(basis), n)), np.zeros((n, len(basis)))
        for coefficient, number in enumerate(basis):
            encoder[coefficient, channels[number]] = self.encoder[coefficient]
            decoder[channels[number], coefficient] = self.decoder[:, coefficient]
        self.encoder, self.decoder = encoder, decoder

    def tile_bytes(self):
        return 4 * self.widths.sum() + (TILE if self.gain else 0)

    def stacked(self, keys, values):
        """y [T, n], from the layers' keys before RoPE and values [T, num_kv_heads, head_dim]."""
        rows = {"k": keys, "v": values}
        return np.concatenate([rows[part][layer][:, head] for layer in self.layers for part in self.parts for head in self.heads], 1)

    def means(self, count):
        """What the codes of a text's first tokens are about. [T, n]"""
        means = np.tile(self.mean, (count, 1))
        if self.first is not None:
            means[0] = self.first
        return means

    def encode(self, keys, values, theta):
        """Codes [T, k] from 0 on and the numbers of their gains [T], of a text's tokens from the first on."""
        y = self.stacked(keys, values)
        y = y - self.means(len(y))
        if self.rotated:
            y = rope(y, np.arange(len(y)), theta)
        z = y @ self.encoder.T.astype(np.float64)
        if self.first is not None:
            z[0] += self.steps / 2
        half = 2.0 ** (self.widths - 1)
        candidates = []
        for gain in GAINS if self.gain else GAINS[UNIT_GAIN:UNIT_GAIN + 1]:
            levels = np.clip(np.floor(z / (self.steps * gain)), -half, half - 1)
            error = (((levels + 0.5) * self.steps * gain - z) ** 2).sum(1)
            candidates.append((error, levels + half))
        gains = np.argmin([error for error, _ in candidates], 0)  # the first of equal ones
        codes = np.choose(gains[:, None], [codes for _, codes in candidates]).astype(int)
        return codes, gains if self.gain else np.full(len(y), UNIT_GAIN)

    def decode(self, codes, gains, theta):
        """y [T, n]; of a rotated block the keys behind RoPE."""
        z = (codes - 2.0 ** (self.widths - 1) + 0.5) * self.steps * GAINS[gains][:, None]
        if self.first is not None:
            z[0] -= self.steps / 2
        means = self.means(len(z))
        if self.rotated:
            means = rope(means, np.arange(len(z)), theta)
        return z @ self.decoder.T + means

    def pack(self, codes, gains):
        """The bytes of one tile of 32 tokens."""
        planes = []
        for width, column in zip(self.widths, codes.T):
            below = width
            for plane in (8, 4, 2, 1):
                if width & plane:
                    below -= plane
                    number = sum(((int(code) >> int(below)) & ((1 << plane) - 1)) << (plane * token) for token, code in enumerate(column))
                    planes.append(number.to_bytes(4 * plane, "little"))
        return b"".join(planes) + (bytes(gains.tolist()) if self.gain else b"")


def _rounded(encoder):
    """In float16 where that adds a millionth of squared error at most, in every row and column."""
    half = encoder.astype(np.float16).astype(np.float64)
    error, energy = (half - encoder) ** 2, encoder.astype(np.float64) ** 2
    holds = np.isfinite(half).all() and all((error.sum(axis) <= 1e-6 * energy.sum(axis)).all() for axis in (0, 1))
    return half if holds else encoder.astype(np.float64)


def decoded_rows(blocks, keys, values, theta):
    """What the codes of all layers' keys (before RoPE) and values give: keys behind RoPE, and values."""
    read_keys, read_values = np.zeros_like(keys), np.zeros_like(values)
    for block in blocks:
        read = block.decode(*block.encode(keys, values, theta), theta)
        width, place = keys.shape[-1], 0
        for layer in block.layers:
            for part in block.parts:
                for head in block.heads:
                    rows, place = read[:, place:place + width], place + width
                    if part == "v":
                        read_values[layer][:, head] = rows
                    else:
                        read_keys[layer][:, head] = rows if block.rotated else rope(rows, np.arange(len(rows)), theta)
    return read_keys, read_values


class Llama:
    """A forward pass in numpy, of models without biases, head norms and windows."""

    def __init__(self, directory):
        self.directory, config = directory, directory.config
        self.num_layers, self.num_heads, self.epsilon = (config["num_hidden_layers"], config["num_attention_heads"],
                                                         config["rms_norm_eps"])
        self.num_kv_heads, self.head_dim = config["num_key_value_heads"], config["head_dim"]
        self.theta = config["rope_parameters"]["rope_theta"]

    def _weight(self, name):
        return self.directory.get(name + ".weight")

    def _norm(self, rows, name):
        return rows / np.sqrt((rows ** 2).mean(1, keepdims=True) + self.epsilon) * self._weight(name)

    def plain_rows(self, layer, hidden):
        """Keys before RoPE and values [T, num_kv_heads, head_dim]."""
        return [(hidden @ self._weight(f"model.layers.{layer}.self_attn.{name}_proj").T)
                .reshape(len(hidden), self.num_kv_heads, self.head_dim) for name in "kv"]

    def latent_rows(self, layer, hidden):
        """The same, of a model that palu converted."""
        prefix = f"kvconvert.groups.{layer}."
        return [(hidden @ self.directory.matrix(f"{prefix}{part}.latent_proj", 0).T
                 @ self.directory.matrix(f"{prefix}{part}.reconstruct_proj", 1).T)
                .reshape(len(hidden), self.num_kv_heads, self.head_dim) for part in ("key", "value")]

    def logits(self, ids, rows_of=None, blocks=()):
        """Log probabilities [T, vocab_size]. With blocks, a token reads its own tile exactly and earlier ones through codes."""
        rows_of = rows_of or self.plain_rows
        count, positions = len(ids), np.arange(len(ids))
        hidden = self._weight("model.embed_tokens")[ids]
        is_seen, is_own = positions <= positions[:, None], positions // TILE == positions[:, None] // TILE
        self.keys, self.values = (np.zeros((self.num_layers, count, self.num_kv_heads, self.head_dim)) for _ in range(2))
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            normed = self._norm(hidden, prefix + "input_layernorm")
            query = (normed @ self._weight(prefix + "self_attn.q_proj").T).reshape(count, self.num_heads, self.head_dim)
            self.keys[layer], self.values[layer] = rows_of(layer, normed)
            own = [block for block in blocks if layer in block.layers]
            if own:
                read_keys, read_values = (rows[layer] for rows in decoded_rows(own, self.keys, self.values, self.theta))
            out = np.zeros_like(query)
            for head in range(self.num_heads):
                kv_head = head * self.num_kv_heads // self.num_heads
                turned = rope(query[:, head], positions, self.theta) / np.sqrt(self.head_dim)
                scores = turned @ rope(self.keys[layer][:, kv_head], positions, self.theta).T
                if own:
                    scores = np.where(is_own, scores, turned @ read_keys[:, kv_head].T)
                scores = np.where(is_seen, scores, -np.inf)
                weights = np.exp(scores - scores.max(1, keepdims=True))
                weights /= weights.sum(1, keepdims=True)
                if own:
                    out[:, head] = weights * is_own @ self.values[layer][:, kv_head] + weights * ~is_own @ read_values[:, kv_head]
                else:
                    out[:, head] = weights @ self.values[layer][:, kv_head]
            hidden = hidden + out.reshape(count, -1) @ self._weight(prefix + "self_attn.o_proj").T
            normed = self._norm(hidden, prefix + "post_attention_layernorm")
            gate = normed @ self._weight(prefix + "mlp.gate_proj").T
            hidden = hidden + (gate / (1 + np.exp(-gate)) * (normed @ self._weight(prefix + "mlp.up_proj").T)) @ self._weight(
                prefix + "mlp.down_proj").T
        return log_softmax(self._norm(hidden, "model.norm") @ self._weight("model.embed_tokens").T)


def log_softmax(logits):
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
