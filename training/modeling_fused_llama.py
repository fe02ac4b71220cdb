"""Llama whose upper layers store no keys and values: they read those of storage layers below, channel by channel
(FusedKV, arXiv 2512.03870). train_reference_model.py trains it, kvrun runs it, and transformers loads it from a directory
that holds this file (trust_remote_code=True). The plan is config.kvconvert["plan"], as core/kv_plan.h has it; fused layers
of form channel only.
"""
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    ALL_ATTENTION_FUNCTIONS, LlamaAttention, apply_rotary_pos_emb, eager_attention_forward)


def fused_plan(num_layers, num_kv_heads, head_dim, method):
    """The plan of methods fusedkv (bottom and middle layer) and fusedkv-lite (keys of the middle, values of the bottom one)."""
    num_storage = (num_layers + 1) // 2
    bottom, middle = 0, num_storage - 1
    both = sorted({bottom, middle})
    sources = {"fusedkv": (both, both), "fusedkv-lite": ([middle], [bottom])}[method]
    fused = [
        {"layer": layer, "form": "channel", "key_sources": sources[0], "value_sources": sources[1]}
        for layer in range(num_storage, num_layers)]
    policy = {
        "rule": "ls", "granularity": "token", "prefill": "exact", "unmerged": "plain", "target_kept_ratio": 0.5,
        "sink_tokens": 4, "window_tokens": 128, "block_tokens": 64}
    return {
        "method": method, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "key_norm": False,
        "layers": ["plain"] * num_storage + ["fused"] * len(fused), "groups": [], "fused": fused, "policy": policy}


class FusedLlamaConfig(LlamaConfig):
    model_type = "kvconvert_llama"

    def __init__(self, kvconvert=None, **settings):
        super().__init__(**settings)
        self.kvconvert = kvconvert


class FusionVectors(nn.Module):
    """Factors [sources, kv_dim] of one layer's keys and values. Both channels of a RoPE pair of keys begin with one factor
    and use the mean of theirs, so that their gradients are equal and they keep it."""

    def __init__(self, layer, kv_dim, head_dim):
        super().__init__()
        self.head_dim = head_dim
        self.key = nn.Parameter(torch.zeros(len(layer["key_sources"]), kv_dim))
        self.value = nn.Parameter(torch.zeros(len(layer["value_sources"]), kv_dim))
        with torch.no_grad():  # begins as FusedKV-Lite
            self.key[-1] = 1
            self.value[0] = 1

    def tied_key(self):
        halves = self.key.unflatten(-1, (-1, 2, self.head_dim // 2))
        return halves.mean(2, keepdim=True).expand_as(halves).flatten(1)


class FusedLlamaAttention(LlamaAttention):
    """`read` [layer] holds the post-RoPE keys and the values that storage layers have shown in this pass."""

    def __init__(self, config, layer_idx, read, layer=None, vectors=None):
        super().__init__(config, layer_idx)
        self.read, self.layer, self.vectors = read, layer, [vectors]  # a list: registered elsewhere
        if layer is not None:
            del self.k_proj, self.v_proj

    def fuse(self, sources, weight, which):
        rows = weight.view(len(sources), self.config.num_key_value_heads, 1, self.head_dim)
        return sum(row * self.read[source][which] for row, source in zip(rows, sources))

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = position_embeddings
        if self.layer is None:
            key = self.k_proj(hidden_states).view(shape).transpose(1, 2)
            value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
            query, key = apply_rotary_pos_emb(query, key, cos, sin)
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, self.layer_idx)
            self.read[self.layer_idx] = key, value
        else:
            query, _ = apply_rotary_pos_emb(query, query, cos, sin)
            vectors = self.vectors[0]
            key = self.fuse(self.layer["key_sources"], vectors.tied_key(), 0).to(query.dtype)
            value = self.fuse(self.layer["value_sources"], vectors.value, 1).to(query.dtype)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        output, weights = attend(
            self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


class FusedLlamaForCausalLM(LlamaForCausalLM):
    config_class = FusedLlamaConfig

    def __init__(self, config):
        super().__init__(config)
        read = {}
        layers = {layer["layer"]: layer for layer in config.kvconvert["plan"]["fused"]}
        kv_dim = config.num_key_value_heads * config.head_dim
        self.kvconvert = nn.Module()
        self.kvconvert.fused = nn.ModuleDict(
            {str(index): FusionVectors(layer, kv_dim, config.head_dim) for index, layer in layers.items()})
        for index, block in enumerate(self.model.layers):
            vectors = self.kvconvert.fused[str(index)] if index in layers else None
            block.self_attn = FusedLlamaAttention(config, index, read, layers.get(index), vectors)
        self.post_init()
