"""The attention function that transformers' models call: over codes, or plain where nothing is cached."""

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kvconvert.exact_attention import attend_exactly, causal_mask
from kvconvert.factors import ConversionError

NAME = "kvconvert"


def _plain_attention(module, query, key, value, mask, scaling, dropout, window, softcap) -> torch.Tensor:
    """Attention of a forward pass without a cache, of a layer without codes, or of a vision tower."""
    causal = getattr(module, "is_causal", True)
    num_queries, num_keys = query.shape[2], key.shape[2]
    if mask is None or mask.dim() == 2:
        if not causal:
            allowed = None if mask is None else mask[:, None, None, :]
        elif mask is None and window is None and num_queries == num_keys:
            return attend_exactly(query, key, value, scaling, None, softcap, num_queries > 1, dropout)
        else:
            allowed = causal_mask(num_queries, num_keys, window, query.device)
            if mask is not None:
                seen = allowed & mask[:, None, None, :]
                # Padding sees itself, so that no row of the softmax is empty.
                itself = causal_mask(num_queries, num_keys, 1, query.device)
                allowed = seen | itself
    else:
        allowed = mask
    return attend_exactly(query, key, value, scaling, allowed, softcap, False, dropout)


class _WithoutGradients(torch.autograd.Function):
    """Attention over a cache of codes or latents: its operators have no derivatives."""

    @staticmethod
    def forward(ctx, out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        raise ConversionError("attention over a cache has no gradients; leave past_key_values out, and call the model with "
                              "use_cache=False or train() it first")


def coded_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None,
                    softcap=None, **kwargs):
    """An attention function of transformers: query [B, heads, q, head_dim]; returns [B, q, heads, head_dim]."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer, fused = (getattr(key, name, None) for name in ("coded_layer", "fused_layer"))
    if fused is not None and attention_mask is None:
        out = fused.attend(query, scaling, softcap)
    elif layer is not None:
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ConversionError("attention_mask: a mask of 4 dimensions (images, packed texts) cannot be applied to "
                                  "codes, expected [batch, tokens]; call with use_cache=False, or convert with "
                                  "--method commonkv --export folded")
        out = layer.attend(query, key, value, scaling, softcap)
        if torch.is_grad_enabled() and query.requires_grad:
            out = _WithoutGradients.apply(out, query)
    else:
        if fused is not None:
            key, value = fused.rows(query.shape[2], query.device)
        out = _plain_attention(module, query, key, value, attention_mask, scaling, dropout, sliding_window, softcap)
    return out.transpose(1, 2).contiguous(), None


def coded_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None,
               allow_is_causal_skip=True, allow_is_bidirectional_skip=False, **kwargs):
    """A mask function of transformers: the padding of [batch, kv_length], None without padding; masks that are not
    causal have 4 dimensions."""
    if not allow_is_causal_skip:
        return sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
                         allow_is_causal_skip=False, **kwargs)
    if attention_mask is None:
        return None
    attention_mask = attention_mask[:, -kv_length:]
    return None if attention_mask.all() else attention_mask


def register_attention() -> None:
    """Registers both functions under NAME; without a mask function transformers would drop causality."""
    AttentionInterface.register(NAME, coded_attention)
    AttentionMaskInterface.register(NAME, coded_mask)
