"""What makes a case of the zoo worth comparing with; used by make_zoo.py."""
import contextlib
import copy
import json
import math

import torch
import transformers

NUM_NEW_TOKENS = 24
MIN_MARGIN = 1e-3  # of the greedy choice, relative to the logits' spread; of the router's, in logits
MIN_CHANGE = 1e-2  # of the logits when a feature is off, relative to their spread
ENTROPY = (0.05, 0.85)  # of attention, relative to the uniform one: mean over the heads of a layer


class NotTelling(Exception):
    """A case that would pass with something wrong; another seed may help."""


def require(claim, reason):
    if not claim:
        raise NotTelling(reason)


def spread(logits):
    return (logits.max() - logits.min()).item()


def forget_lengths(model):
    """Dynamic RoPE keeps the angles of the longest text so far: every text starts from the original ones."""
    for module in model.modules():
        if hasattr(module, "original_inv_freq") and getattr(module, "rope_type", None) == "dynamic":
            module.max_seq_len_cached = module.original_max_seq_len
            module.inv_freq = module.original_inv_freq


@torch.no_grad()
def logits_of(model, ids):
    forget_lengths(model)
    return model(ids, use_cache=False).logits[0].float()


@torch.no_grad()
def generate(model, prompts):
    """[len(prompts), NUM_NEW_TOKENS]: greedy tokens with a cache, of a left-padded batch."""
    forget_lengths(model)
    length = max(ids.shape[1] for ids in prompts)
    rows = [torch.nn.functional.pad(ids, (length - ids.shape[1], 0)) for ids in prompts]
    masks = [torch.nn.functional.pad(torch.ones_like(ids), (length - ids.shape[1], 0)) for ids in prompts]
    tokens = model.generate(torch.cat(rows), attention_mask=torch.cat(masks), do_sample=False, eos_token_id=None,
                            max_new_tokens=NUM_NEW_TOKENS, pad_token_id=0, use_cache=True)
    return tokens[:, length:]


def step_logits(model, case, ids, tokens):
    """Logits that choose each of `tokens` after `ids` [1, num_tokens], without a cache. [len(tokens), vocab_size]"""
    sequence = torch.cat([ids, tokens[None]], 1)
    first, last = ids.shape[1], sequence.shape[1]
    if case.by_length:
        return torch.stack([logits_of(model, sequence[:, :length])[-1] for length in range(first, last)])
    return logits_of(model, sequence)[first - 1:-1]


@torch.no_grad()
def cached_logits(model, ids):
    """Logits that choose each of the ids that follow `ids` [1, num_tokens] greedily, with a cache."""
    forget_lengths(model)
    cache, rows = None, []
    for _ in range(NUM_NEW_TOKENS):
        output = model(ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0, -1].float())
        ids = rows[-1].argmax()[None, None]
    return torch.stack(rows)


def greedy_tokens(model, case, ids):
    """The ids that follow `ids` [1, num_tokens] greedily. [NUM_NEW_TOKENS]"""
    if case.cache_agrees:
        return generate(model, [ids])[0]
    for _ in range(NUM_NEW_TOKENS):
        ids = torch.cat([ids, logits_of(model, ids)[-1:].argmax(-1)[None]], 1)
    return ids[0, -NUM_NEW_TOKENS:]


def check_greedy(model, case, prompts):
    """With and without a cache, alone and in a batch, the same tokens follow, none of them by a narrow margin."""
    tokens = [greedy_tokens(model, case, ids) for ids in prompts]
    for ids, single in zip(prompts, tokens):
        rows = cached_logits(model, ids) if case.stale_cache else step_logits(model, case, ids, single)
        best = rows.topk(2).values
        margin = ((best[:, 0] - best[:, 1]).min() / spread(rows)).item()
        require(margin > MIN_MARGIN, f"greedy margin {margin:.1e}")
        require(rows.argmax(1).equal(single), "tokens differ without a cache")
        require(len(set(single.tolist())) > 4, "the continuation repeats itself")
    if not case.by_length:
        require(generate(model, prompts).equal(torch.stack(tokens)), "tokens differ in a batch")
    return tokens


@torch.no_grad()
def check_attention(model, prompts):
    """Attention is neither uniform nor stuck on one key."""
    attentions = model(prompts[0], use_cache=False, output_attentions=True).attentions
    require(attentions and attentions[0] is not None, "no attention to look at")
    for layer, weights in enumerate(attentions):
        rows = weights[0, :, 8:]  # [num_heads, num_queries, num_keys]
        visible = (rows > 0).sum(-1).clamp(min=2)
        entropy = -(rows * rows.clamp(min=1e-30).log()).sum(-1) / visible.float().log()
        mean = entropy.mean().item()
        require(ENTROPY[0] < mean < ENTROPY[1], f"layer {layer}: relative entropy {mean:.2f}")


@contextlib.contextmanager
def recorded_routers(model):
    """Logits of every router call [num_tokens, num_experts]."""
    logits, hooks = [], []
    for module in model.modules():
        if type(module).__name__.endswith("Router"):
            hooks.append(module.register_forward_hook(lambda _, __, out: logits.append(out[0].float())))
    yield logits
    for hook in hooks:
        hook.remove()


def near_tie(values, count):
    """Smallest gap between the last chosen and the first left out."""
    best = values.topk(min(count + 1, values.shape[-1])).values
    return math.inf if best.shape[-1] <= count else (best[:, count - 1] - best[:, count]).min().item()


def check_routers(model, prompts):
    config = model.config
    with recorded_routers(model) as calls:
        for ids in prompts:
            logits_of(model, torch.cat([ids, generate(model, [ids])], 1))
    for logits in calls:
        chosen = logits
        groups = getattr(config, "n_group", None)
        if getattr(config, "topk_method", "") == "group_limited_greedy":
            best = logits.view(len(logits), groups, -1).max(-1).values
            require(near_tie(best, config.topk_group) > MIN_MARGIN, "expert groups near a tie")
            allowed = torch.zeros_like(best).scatter_(1, best.topk(config.topk_group).indices, 1).bool()
            chosen = logits.masked_fill(~allowed.repeat_interleave(logits.shape[1] // groups, 1), -1e9)
        require(near_tie(chosen, config.num_experts_per_tok) > MIN_MARGIN, "experts near a tie")
    if calls:
        used = torch.cat([logits.topk(config.num_experts_per_tok).indices.flatten() for logits in calls])
        require(len(used.unique()) == calls[0].shape[1], "an expert is never chosen")


def with_settings(model, settings):
    """The same weights under other settings."""
    config = copy.deepcopy(model.config).to_dict()
    target = config.get("text_config", config)
    config.pop("dtype", None)
    for key in ("model_type", "architectures", "transformers_version"):
        config.pop(key, None)
    target.update(json.loads(json.dumps(settings)))
    other = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(model.config.model_type, **config), dtype=torch.float32,
        attn_implementation="eager")
    other.load_state_dict(model.state_dict(), strict=False)
    return other.eval()


def neutral_weights(model, part):
    """A copy whose weights of one kind are what an implementation that ignores them would have."""
    other = copy.deepcopy(model)
    neutral = 0.0 if model.config.model_type.startswith("gemma") else 1.0
    found = False
    for name, parameter in other.named_parameters():
        if "vision" not in name and "multi_modal" not in name and part in name:
            parameter.data.fill_(0.0 if name.endswith("bias") else neutral)
            found = True
    return other if found else None


def check_feature(feature, other, prompts, logits):
    for ids, expected in zip(prompts, logits):
        change = ((logits_of(other, ids) - expected).abs().max() / spread(expected)).item()
        require(change > MIN_CHANGE, f"{feature} off changes the logits by {change:.1e} of their spread")


def check_features(model, case, prompts, logits):
    for feature, settings in case.off.items():
        check_feature(feature, with_settings(model, settings), prompts, logits)
    for part in ("bias", "q_norm", "k_norm", "input_layernorm.weight", "post_attention_layernorm.weight",
                 "post_feedforward_layernorm", "pre_feedforward_layernorm", "model.norm.weight", "q_a_layernorm",
                 "kv_a_layernorm", "shared_experts"):
        other = neutral_weights(model, part)
        if other is not None:
            check_feature(part, other, prompts, logits)
    text = model.config.get_text_config()
    for key in [None] if "rope_type" in text.rope_parameters else list(text.rope_parameters):
        parameters = copy.deepcopy(text.rope_parameters)
        (parameters if key is None else parameters[key])["rope_theta"] *= 0.2
        if case.settings.get("no_rope_layers") != []:
            check_feature("rope", with_settings(model, {"rope_parameters": parameters}), prompts, logits)


def check_case(model, case, prompts):
    """Per prompt, logits [num_tokens, vocab_size] and the tokens that follow; NotTelling where they prove nothing."""
    logits = [logits_of(model, ids) for ids in prompts]
    check_attention(model, prompts)
    check_routers(model, prompts)
    tokens = check_greedy(model, case, prompts)
    check_features(model, case, prompts, logits)
    return zip(logits, tokens)
