"""What a converted checkpoint cannot be served with. Each error says what was asked for and the way out."""

import functools
import pathlib
from typing import Any

from vllm.logger import init_logger

from kvconvert._ops import ops
from kvconvert.checkpoints import refusal
from kvconvert.codes import TILE
from kvconvert.device_codes import DTYPES
from kvconvert.factors import ConversionError
from kvconvert.kinds import kind_of
from kvconvert.plans import check_format, reading
from kvconvert.vllm.families import PREFIX, REFUSED

logger = init_logger(__name__)

# Drafts that need no cache of their own.
_DRAFTS_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix")

ONE_LOAD = "kvconvert: factors belong to the weights that were loaded first; restart the engine to serve others"

# Those whose loaders fill a model's parameters without its load_weights().
_FORMATS_WITHOUT_LOADING = ("dummy", "sharded_state", "runai_streamer_sharded", "tensorizer")


def refuse_unsupported(vllm_config: Any) -> None:
    """Raises ValueError for the first setting of `vllm_config` that codes do not support."""
    try:
        _refuse_all(vllm_config)
    except ConversionError as error:
        raise ValueError(f"kvconvert: {error}") from error


def _refuse_all(vllm_config: Any) -> None:
    _refuse_conversion(vllm_config.model_config.hf_config, _path(vllm_config))
    _refuse_other_model(vllm_config)
    _refuse_missing_ops()
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


def _refuse_conversion(config: Any, path: pathlib.Path) -> None:
    """config: of the file `path`."""
    family = config.model_type.removeprefix(PREFIX)
    if family in REFUSED:
        raise ValueError(f"kvconvert: vLLM does not serve {family} from codes: {REFUSED[family]}")
    plan = config.kvconvert.get("plan") if isinstance(config.kvconvert, dict) else None
    if plan is None:
        raise ValueError(
            f"kvconvert: {path} has no kvconvert.plan; convert the checkpoint with kvconvert, or serve the original"
        )
    check_format(config.kvconvert, path)
    kind = kind_of(plan, path)
    with reading(path):
        reason = refusal(kind, config.kvconvert) or kind.why_not_exact(plan, "vLLM")
        unlike = kind.why_unlike_report(plan)
    _refuse(reason)
    if unlike is not None:
        logger.warning("kvconvert: %s", unlike)


def _refuse_other_model(vllm_config: Any) -> None:
    plan, path, model = _plan(vllm_config), _path(vllm_config), vllm_config.model_config
    with reading(path):
        planned = len(plan["layers"]), plan["num_kv_heads"], plan["head_dim"]
    found = model.hf_text_config.num_hidden_layers, model.get_total_num_kv_heads(), model.get_head_size()
    if planned != found:
        raise ValueError(
            "kvconvert: {}: the plan is for {} layers of {} KV heads of {} channels, the model has {} of {} of {}; convert the checkpoint "
            "again".format(path, *planned, *found)
        )


def _refuse_missing_ops() -> None:
    """Before vLLM starts processes that would end without them."""
    try:
        ops()
    except (ImportError, OSError) as error:
        raise ValueError(str(error)) from error


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise ValueError(f"kvconvert: {reason}")


def _plan(vllm_config: Any) -> dict:
    return vllm_config.model_config.hf_config.kvconvert["plan"]


def _path(vllm_config: Any) -> pathlib.Path:
    return pathlib.Path(vllm_config.model_config.model) / "config.json"


def _reason(vllm_config: Any, why: str, *arguments: Any) -> str | None:
    """What the plan's kind says why not: of its function `why`."""
    plan, path = _plan(vllm_config), _path(vllm_config)
    with reading(path):
        return getattr(kind_of(plan, path), why)(plan, *arguments)


def _refuse_device(vllm_config: Any) -> None:
    device, dtype = vllm_config.device_config.device_type, vllm_config.model_config.dtype
    if device not in ("cpu", "cuda"):
        raise ValueError(f"kvconvert: codes run on the CPU and on CUDA GPUs, not on {device}; serve the original checkpoint")
    if device == "cpu":
        return
    if vllm_config.model_config.enable_sleep_mode:
        raise ValueError("kvconvert: on a GPU sleep mode may discard factors, which nothing restores; remove --enable-sleep-mode")
    _refuse(_reason(vllm_config, "why_not_on_gpus"))
    if dtype not in DTYPES:
        raise ValueError(
            f"kvconvert: on a GPU {kind_of(_plan(vllm_config)).stored} serve bfloat16 and float16, and --dtype is {str(dtype).removeprefix('torch.')}; "
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
    if parallel.tensor_parallel_size > 1:
        _refuse(_reason(vllm_config, "why_not_split", parallel.tensor_parallel_size))


def _refuse_adapters(vllm_config: Any) -> None:
    reason = _reason(vllm_config, "why_not_adapted")
    if vllm_config.lora_config is not None:
        _refuse(reason)
    if reason is None:
        return
    load_format = vllm_config.load_config.load_format
    if load_format in _FORMATS_WITHOUT_LOADING:
        raise ValueError(
            f"kvconvert: --load-format {load_format} does not load the factors that replace projections; remove the flag"
        )
    quantization = vllm_config.model_config.quantization
    if quantization is not None:
        raise ValueError(
            f"kvconvert: --quantization {quantization} waits for weights of projections that factors replace; remove the flag, or "
            "convert with --method coded or pca"
        )


def refuse_reloading(worker: type) -> None:
    """A worker's reload_weights() raises ValueError for converted models, before it drops the weights that serve."""
    reload_weights = worker.reload_weights
    if hasattr(reload_weights, "refuses"):
        return

    @functools.wraps(reload_weights)
    def refusing(self, *arguments: Any, **settings: Any) -> None:
        if hasattr(self.model_runner.get_model(), "kvconvert_stores"):
            raise ValueError(ONE_LOAD)
        reload_weights(self, *arguments, **settings)

    refusing.refuses = True
    worker.reload_weights = refusing
