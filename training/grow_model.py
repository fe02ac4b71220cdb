"""Makes a larger Llama checkpoint that begins with layers and heads of a trained small one.

A model learns to fetch facts late and abruptly: the small reference model needs 18 million tokens for it. A larger model
that begins with the small one's attention heads fetches them again after twenty steps, and learns to use its new channels and
its longer context from there (train_reference_model.py --init). Heads of 128 channels with one KV head, eight layers:

  python grow_model.py reference-llama --out grown --texts a.txt b.txt --layers 0,2,3,5,6,7,8,9 --num-heads 4 --head-dim 128 \
      --hidden-size 384 --intermediate-size 1024 --context 4096

What is kept, what is new:
- Layers: those of --layers. Query heads: in each layer the --num-heads whose removal raises the loss most.
- One KV head holds the channels of all KV heads of a layer side by side. The first KV head's rotary pairs keep their
  frequencies exactly: pair i becomes pair 3 i of a head four times as wide, and theta becomes theta^(4/3). The other heads'
  pairs take the free places next to them.
- New key, value and MLP channels are random and as large as the old ones. What reads them (new query channels, columns of
  the output and down projections) begins at 0, so that they change nothing before they are trained.
- New hidden channels begin at 0 in the embedding, and are filled by random rows of the output and down projections.
"""
import argparse
import math
import random
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from train_reference_model import batch, words_of

FREQUENCY_STRIDE = 3  # rotary pair i of the small head is pair 3 i of the large one


def pair_channels(head_dim, pairs):
    """Channels of rotary pairs in the layout of rotate_half: the first halves, then the second halves."""
    return torch.cat([pairs, pairs + head_dim // 2])


def kv_channels(small_dim, large_dim, kv_head):
    """Channels of the large KV head that hold the keys of the small model's KV head `kv_head`."""
    return pair_channels(large_dim, FREQUENCY_STRIDE * torch.arange(small_dim // 2) + kv_head)


@torch.no_grad()
def mean_loss(model, rows):
    logits = model(rows[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


@torch.no_grad()
def chosen_heads(model, layers, num_heads, rows):
    """For each of `layers` the query heads whose removal raises the loss on `rows` most, in ascending order."""
    dim = model.config.head_dim
    chosen = {}
    for layer in layers:
        weight = model.model.layers[layer].self_attn.o_proj.weight
        losses = []
        for head in range(model.config.num_attention_heads):
            columns = weight[:, head * dim : (head + 1) * dim]
            kept = columns.clone()
            columns.zero_()
            losses.append(mean_loss(model, rows))
            columns.copy_(kept)
        ranked = sorted(range(len(losses)), key=lambda head: -losses[head])
        chosen[layer] = sorted(ranked[:num_heads])
        print(f"layer {layer}: heads {chosen[layer]}", flush=True)
    return chosen


def random_like(shape, old):
    return torch.randn(shape) * old.std()


@torch.no_grad()
def grow_attention(small, large, heads, old, new):
    """Copies the attention of one layer; `old` and `new` are the configurations."""
    small_dim, large_dim, width = old.head_dim, new.head_dim, old.hidden_size
    per_kv = old.num_attention_heads // old.num_key_value_heads
    scale = math.sqrt(large_dim / small_dim)  # scores are divided by the root of the larger dimension
    large.q_proj.weight.zero_()
    large.o_proj.weight.zero_()
    large.o_proj.weight[width:] = torch.randn(new.hidden_size - width, large.o_proj.in_features) * 0.02
    for place, head in enumerate(heads):
        kv_head = head // per_kv
        source = slice(head * small_dim, (head + 1) * small_dim)
        keys = place * large_dim + kv_channels(small_dim, large_dim, kv_head)
        large.q_proj.weight[keys, :width] = scale * small.q_proj.weight[source]
        values = place * large_dim + kv_head * small_dim + torch.arange(small_dim)
        large.o_proj.weight[:width, values] = small.o_proj.weight[:, source]
    large.k_proj.weight.copy_(random_like(large.k_proj.weight.shape, small.k_proj.weight))
    large.v_proj.weight.copy_(random_like(large.v_proj.weight.shape, small.v_proj.weight))
    for kv_head in range(old.num_key_value_heads):
        source = slice(kv_head * small_dim, (kv_head + 1) * small_dim)
        for weight, rows, values in [
                (large.k_proj.weight, kv_channels(small_dim, large_dim, kv_head), small.k_proj.weight[source]),
                (large.v_proj.weight, kv_head * small_dim + torch.arange(small_dim), small.v_proj.weight[source])]:
            weight[rows] = 0.0
            weight[rows[:, None], torch.arange(width)] = values


@torch.no_grad()
def grow_mlp(small, large, width):
    neurons = small.gate_proj.out_features
    for name in ("gate_proj", "up_proj"):
        old, weight = getattr(small, name).weight, getattr(large, name).weight
        weight.copy_(random_like(weight.shape, old))
        weight[:neurons] = 0.0
        weight[:neurons, :width] = old
    down = large.down_proj.weight
    down.zero_()
    down[:width, :neurons] = small.down_proj.weight
    down[width:] = torch.randn_like(down[width:]) * 0.02


@torch.no_grad()
def grow_norm(small, large):
    """Zeros in new channels shrink the mean square, which the weights take back."""
    width = small.weight.numel()
    shrunk = math.sqrt(width / large.weight.numel())
    large.weight.fill_(small.weight.mean().item() * shrunk)
    large.weight[:width] = small.weight * shrunk


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("checkpoint", type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--texts", nargs="+", type=Path, required=True, help="what heads are chosen by, mixed with recall and copying")
    p.add_argument("--layers", type=lambda text: [int(layer) for layer in text.split(",")], required=True)
    p.add_argument("--num-heads", type=int, default=4)
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--hidden-size", type=int, default=384)
    p.add_argument("--intermediate-size", type=int, default=1024)
    p.add_argument("--context", type=int, default=4096)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    small = LlamaForCausalLM.from_pretrained(a.checkpoint, dtype=torch.float32).eval()
    old = small.config
    if a.head_dim != 4 * old.head_dim or old.num_key_value_heads > FREQUENCY_STRIDE:
        p.error(f"{a.checkpoint}: has {old.num_key_value_heads} KV heads of {old.head_dim}; "
                f"needs at most {FREQUENCY_STRIDE} of a quarter of --head-dim {a.head_dim}")
    torch.manual_seed(a.seed)
    rng = random.Random(a.seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(a.checkpoint, model_max_length=a.context)
    texts = [path.read_text() for path in a.texts]
    stream = tokenizer("\n".join(texts), add_special_tokens=False).input_ids
    words = words_of(texts[0])
    rows = batch(rng, stream, tokenizer, words, 16, 256, 0.4, 0.2, 0.0)
    theta = old.rope_parameters["rope_theta"] ** (4 / FREQUENCY_STRIDE)
    new = LlamaConfig(
        vocab_size=old.vocab_size, hidden_size=a.hidden_size, num_hidden_layers=len(a.layers), num_attention_heads=a.num_heads,
        num_key_value_heads=1, head_dim=a.head_dim, intermediate_size=a.intermediate_size, max_position_embeddings=a.context,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": round(theta, 3)},
        rms_norm_eps=old.rms_norm_eps, bos_token_id=0, eos_token_id=1, pad_token_id=None)
    large = LlamaForCausalLM(new).eval()
    heads = chosen_heads(small, a.layers, a.num_heads, rows)
    for place, layer in enumerate(a.layers):
        source, target = small.model.layers[layer], large.model.layers[place]
        grow_attention(source.self_attn, target.self_attn, heads[layer], old, new)
        grow_mlp(source.mlp, target.mlp, old.hidden_size)
        grow_norm(source.input_layernorm, target.input_layernorm)
        grow_norm(source.post_attention_layernorm, target.post_attention_layernorm)
    grow_norm(small.model.norm, large.model.norm)
    with torch.no_grad():
        large.model.embed_tokens.weight.zero_()
        large.model.embed_tokens.weight[:, : old.hidden_size] = small.model.embed_tokens.weight
    print(f"loss {mean_loss(small, rows):.3f} -> {mean_loss(large, rows):.3f}; "
          f"{sum(q.numel() for q in large.parameters()) / 1e6:.2f} M parameters")
    large.save_pretrained(a.out)
    tokenizer.save_pretrained(a.out)
    training = a.checkpoint / "training.json"
    (a.out / "training.json").write_text(training.read_text() if training.exists() else "{}\n")


if __name__ == "__main__":
    main()
