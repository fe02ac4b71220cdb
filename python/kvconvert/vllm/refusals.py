"""What a converted checkpoint cannot be served with. Each error says what was asked for and the way out."""

from typing import Any

from kvconvert import fused, latents
from kvconvert.checkpoints import FUSED_METHODS, LATENT_METHODS
from kvconvert.codes import TILE, can_keep_exact
from kvconvert.device_codes import DTYPES
from kvconvert.fused import is_fused
from kvconvert.latents import is_latent
from kvconvert.plans import exact_tokens
from kvconvert.vllm.families import PREFIX, REFUSED

# Drafts that need no cache of their own.
_DRAFTS_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix")
# Conversions to something else than codes, and what of them vLLM does not run.
_WHY_REFUSED = ((is_latent, latents.why_refused), (is_fused, fused.why_refused))


def refuse_unsupported(vllm_config: Any) -> None:
    """Raises ValueError for the first setting of `vllm_config` that codes do not support."""
    refuse_conversion(vllm_config.model_config.hf_config)
    _refuse_device(vllm_config)
    _refuse_cache(vllm_config)
    _refuse_parallel(vllm_config)
    _refuse_adapters(vllm_config)
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method not in _DRAFTS_WITHOUT_CACHE:
        raise ValueError(
            f"kvconvert: speculative method '{speculative.method}' needs exact keys and values of its own; "
            f"use {' or '.join(_DRAFTS_WITHOUT_CACHE)}, or serve the original checkpoint"
        )


def refuse_conversion(config: Any) -> None:
    """Raises ValueError if the checkpoint is not converted to codes or latents of all tokens, or to fused layers."""
    family = config.model_type.removeprefix(PREFIX)
    if family in REFUSED:
        raise ValueError(f"kvconvert: vLLM does not serve {family} from codes: {REFUSED[family]}")
    plan = (config.kvconvert or {}).get("plan")
    if plan is None:
        raise ValueError(
            "kvconvert: config.json has no kvconvert.plan; convert the checkpoint with kvconvert, or serve the original"
        )
    why_refused = next((why for is_kind, why in _WHY_REFUSED if is_kind(plan)), None)
    if plan["method"] != "coded" and why_refused is None:
        raise ValueError(
            f"kvconvert: vLLM serves methods coded, {LATENT_METHODS}, {FUSED_METHODS}, and this checkpoint was converted by "
            f"'{plan['method']}'; convert with `kvconvert --for vllm`, or export it (`kvexport`)"
        )
    reason = why_refused(config.kvconvert) if why_refused else None
    if reason is not None:
        raise ValueError(f"kvconvert: method {plan['method']}: kvrun alone runs {reason}")
    if not is_fused(plan):  # it keeps all tokens of plain layers, and uses no policy
        _refuse_policy(plan)


def _refuse_policy(plan: dict) -> None:
    latent, (sink, window) = is_latent(plan), exact_tokens(plan)
    if not ((sink, window) == (0, 0) if latent else can_keep_exact(sink, window)):
        served = "no tokens" if latent else f"a multiple of {TILE} last tokens, and no first ones,"
        raise ValueError(
            f"kvconvert: vLLM keeps {served} exact, and this conversion keeps a window of {window} and {sink} "
            "sink tokens exact; convert with `kvconvert --for vllm`"
        )
    block = plan["policy"]["block_tokens"]
    if latent and block != 1:
        raise ValueError(
            f"kvconvert: vLLM stores each token as a latent at once, and this conversion keeps {block} generated tokens "
            "exact until they are a block; convert with `kvconvert --for vllm`"
        )
    rule = plan.get("policy", {}).get("rule", "none")
    if rule != "none" and not latent:
        raise ValueError(
            f"kvconvert: vLLM keeps all tokens, and this conversion has the token policy '{rule}'; "
            "convert without a policy"
        )


def _refuse_device(vllm_config: Any) -> None:
    device, dtype = vllm_config.device_config.device_type, vllm_config.model_config.dtype
    if device not in ("cpu", "cuda"):
        raise ValueError(f"kvconvert: codes run on the CPU and on CUDA GPUs, not on {device}; serve the original checkpoint")
    plan = vllm_config.model_config.hf_config.kvconvert["plan"]
    for is_kind, name in ((is_latent, "latents"), (is_fused, "fused layers")):
        if device == "cuda" and is_kind(plan):
            raise ValueError(
                f"kvconvert: {name} run on the CPU, and this is a CUDA GPU; convert with `kvconvert --for vllm --method coded`, "
                "or serve on the CPU"
            )
    if device == "cuda" and dtype not in DTYPES:
        raise ValueError(
            f"kvconvert: on a GPU codes serve bfloat16 and float16, and --dtype is {str(dtype).removeprefix('torch.')}; "
            "pass --dtype bfloat16, or serve on the CPU"
        )


def _refuse_cache(vllm_config: Any) -> None:
    cache = vllm_config.cache_config
    if cache.cache_dtype not in ("auto", "bfloat16", "float16"):
        raise ValueError(
            f"kvconvert: the cache holds codes, and --kv-cache-dtype {cache.cache_dtype} would code them again; "
            "remove the flag"
        )
    # Unless the user chose a size, the platform sets one later.
    if cache.user_specified_block_size and cache.block_size % TILE:
        raise ValueError(
            f"kvconvert: codes come in tiles of {TILE} tokens; --block-size is {cache.block_size} and must be a "
            f"multiple of {TILE}"
        )
    if cache.kv_offloading_size is not None or vllm_config.kv_transfer_config is not None:
        raise ValueError(
            "kvconvert: KV connectors and offloading move exact keys and values; remove --kv-transfer-config and "
            "--kv-offloading-size"
        )
    if cache.kv_sharing_fast_prefill:
        raise ValueError("kvconvert: remove --kv-sharing-fast-prefill; layers of codes do not share caches")


def _refuse_parallel(vllm_config: Any) -> None:
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel, name, 1)
        if size > 1:
            raise ValueError(
                f"kvconvert: codes of a sequence stay on one rank; {name} is {size} and must be 1 "
                "(tensor and pipeline parallel work)"
            )
    if getattr(parallel, "use_ubatching", False):
        raise ValueError("kvconvert: codes of a step's tokens are stored together; remove --enable-dbo and --ubatch-size")
    plan = vllm_config.model_config.hf_config.kvconvert["plan"]
    ranks = parallel.tensor_parallel_size
    if ranks > 1 and is_latent(plan):
        raise ValueError(
            f"kvconvert: a latent is of all {plan['num_kv_heads']} KV heads and cannot be split over {ranks} tensor parallel "
            "ranks; convert with `kvconvert --for vllm --scope head`, or use --pipeline-parallel-size"
        )
    mapped = [layer["layer"] for layer in plan.get("fused", []) if layer.get("key_heads") or layer.get("value_heads")]
    if ranks > 1 and mapped:
        raise ValueError(
            f"kvconvert: KV heads of layer {mapped[0]} read other heads of its sources, which {ranks} tensor parallel ranks would "
            "not have; convert without --head-map search"
        )
    joint = [block for block in plan.get("coded", []) if block.get("head") is None]
    if ranks > 1 and joint and plan["num_kv_heads"] > 1:
        raise ValueError(
            f"kvconvert: codes over all {plan['num_kv_heads']} KV heads cannot be split over {ranks} tensor parallel "
            "ranks; convert with `kvconvert --scope head`, or use --pipeline-parallel-size"
        )


def _refuse_adapters(vllm_config: Any) -> None:
    plan = vllm_config.model_config.hf_config.kvconvert["plan"]
    if vllm_config.lora_config is not None and any(group.get("basis") != "calibrated" for group in plan.get("groups", [])):
        raise ValueError(
            "kvconvert: latents are factors of the projections' weights, which LoRA changes; remove --enable-lora, or convert "
            "with `kvconvert --for vllm --method pca`"
        )
    if vllm_config.lora_config is not None and is_fused(plan):
        raise ValueError(
            "kvconvert: fused layers have no projections of keys and values, which LoRA changes; remove --enable-lora, or convert "
            "with `kvconvert --for vllm --method coded`"
        )
