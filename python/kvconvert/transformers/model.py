"""What a converted model adds to transformers' own class: codes, their cache, and refusals."""

import copy
import functools
import inspect
import pathlib
import warnings
import weakref

import torch
from transformers.generation.utils import ALL_CACHE_NAMES

from kvconvert.checkpoints import ConvertedCheckpoint
from kvconvert.codes import CodedCheckpoint
from kvconvert.factors import ConversionError
from kvconvert.fused import FusedCheckpoint
from kvconvert.hub import local_directory
from kvconvert.kinds import kind_of, open_checkpoint
from kvconvert.latents import LatentCheckpoint
from kvconvert.transformers.attention import NAME
from kvconvert.transformers.cache import CodedCache
from kvconvert.transformers.model_codes import ModelCodes
from kvconvert.transformers.model_fused import ModelFused
from kvconvert.transformers.model_latents import ModelLatents
from kvconvert.transformers.model_parts import ModelParts

_CACHE = ALL_CACHE_NAMES[0]  # the argument of forward passes: "past_key_values", "cache" in later versions of transformers
_PARTS = {CodedCheckpoint: ModelCodes, LatentCheckpoint: ModelLatents, FusedCheckpoint: ModelFused}
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision")


def open_served(directory: pathlib.Path) -> ConvertedCheckpoint:
    """A directory that transformers runs. Raises ConversionError for any other."""
    checkpoint = open_checkpoint(directory)
    reason = checkpoint.why_not_exact(checkpoint.plan, "transformers")
    if reason is not None:
        raise ConversionError(f"{checkpoint.path}: {reason}, run this directory with kvrun, or convert with --method commonkv --export "
                              "folded, which runs everywhere")
    return checkpoint


class CodedModel:
    """Mixin before a model class of transformers."""

    _keys_to_ignore_on_load_unexpected = [r"^kvconvert\."]
    coded: ModelParts | None = None

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        plan = (config.kvconvert or {}).get("plan")
        kind = kind_of(plan) if isinstance(plan, dict) else None
        if kind in _PARTS and kind.why_refused(config.kvconvert) is None:
            _PARTS[kind].prepare(self.get_decoder(), plan)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, exact_step: bool = False, **kwargs):
        """As transformers'. exact_step: a token attends exactly to the tokens of its own forward pass."""
        hub = {key: kwargs[key] for key in _HUB_OPTIONS if kwargs.get(key) is not None}
        directory = local_directory(pretrained_model_name_or_path, kwargs.get("subfolder") or "", **hub)
        checkpoint = open_served(directory)
        # Auto classes note the caller's choice in the configuration.
        configured = getattr(kwargs.get("config"), "_attn_implementation_internal", None)
        chosen = kwargs.get("attn_implementation") or configured
        if chosen not in (None, NAME):
            raise _attention_error(directory, chosen)
        kwargs["attn_implementation"] = NAME
        wants_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        if info["missing_keys"]:  # which transformers fills with random numbers
            raise ConversionError(f"{directory}: no file has {len(info['missing_keys'])} of the model's tensors, such as "
                                  f"{min(info['missing_keys'])}; copy the whole directory, or convert again")
        model._attach(checkpoint, exact_step)
        return (model, info) if wants_info else model

    def _attach(self, checkpoint: ConvertedCheckpoint, exact_step: bool) -> None:
        self.coded = _PARTS[type(checkpoint)](self.get_decoder(), checkpoint, exact_step)
        base, hook = self.base_model, functools.partial(_before_forward, self.coded, type(self).__name__)
        base.register_forward_pre_hook(torch.compiler.disable(hook), with_kwargs=True)
        base.register_forward_hook(torch.compiler.disable(_after_forward), with_kwargs=True)
        # Codes are read and written by operators that torch.compile cannot look into, at sizes that change each step.
        base.forward = torch.compiler.disable(_unbound_forward(base))

    def new_cache(self) -> CodedCache:
        """An empty cache of codes, as generate() makes one."""
        if self.coded is None:
            raise ConversionError(f"{type(self).__name__}: made without codes; load it with from_pretrained")
        return CodedCache(self.coded)

    def _check_and_adjust_attn_implementation(self, attn_implementation, *args, **kwargs):
        if attn_implementation not in (None, NAME):
            raise _attention_error(type(self).__name__, attn_implementation)
        return NAME

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        implementation = generation_config.cache_implementation
        if implementation not in (None, "dynamic"):
            raise ConversionError(
                f"cache_implementation {implementation!r}: a converted model stores codes in a cache of its own, which "
                "is neither static, offloaded nor quantised again; expected None or 'dynamic'. "
                "kvconvert --method commonkv --export folded writes a model for every cache")
        _refuse_early_exit(self.coded, getattr(generation_config, "assistant_early_exit", None))
        if self.coded is not None and (generation_config.max_length or 0) > self.coded.max_positions:
            warnings.warn(f"max_length {generation_config.max_length}: the model was converted for {self.coded.max_positions} tokens; a "
                          "text that reaches them ends with an error and is lost. Pass a smaller max_new_tokens", stacklevel=2)
        if model_kwargs.get(_CACHE) is not None and generation_config.use_cache is False:
            raise ConversionError(f"use_cache=False beside {_CACHE}: every step would read all tokens again and add them to the cache; "
                                  "leave one of the two out")
        if model_kwargs.get(_CACHE) is None and generation_config.use_cache is not False:
            model_kwargs[_CACHE] = self.new_cache()
            if generation_config.is_assistant:  # drafts that are not accepted are cropped
                model_kwargs[_CACHE].activate_past_recording()
            return False  # no cache that transformers made
        return super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)

    def __deepcopy__(self, memo: dict) -> "CodedModel":
        """Refused once there are factors: hooks and operators would stay those of the first model."""
        if self.coded is not None:
            raise ConversionError(f"{type(self).__name__}: a converted model is not copied; load its directory again, or share the model")
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__setstate__(copy.deepcopy(vars(self), memo))
        return copied

    def __reduce_ex__(self, protocol: int):
        """Refused once there are factors, for the same reason."""
        if self.coded is not None:
            raise ConversionError(f"{type(self).__name__}: a converted model is not pickled; load its directory in each process, and keep "
                                  "trained weights with torch.save(model.state_dict(), FILE)")
        return super().__reduce_ex__(protocol)

    def save_pretrained(self, save_directory, *args, **kwargs):
        """Refused: transformers holds no factors of codes, so the result would not load."""
        raise ConversionError(f"{save_directory}: a converted model is saved by copying its directory; trained weights by "
                              "torch.save(model.state_dict(), FILE), or as an adapter of PEFT. To save others, save the original "
                              "model and convert it")


def _unbound_forward(module: torch.nn.Module):
    """The module's forward, without a reference to the module, which would keep it in memory."""
    if "forward" in vars(module):  # a hook of accelerate
        return module.forward
    held, inner = weakref.ref(module), type(module).forward

    def forward(*args, **kwargs):
        return inner(held(), *args, **kwargs)

    forward.__signature__ = inspect.signature(module.forward)
    return forward


def _attention_error(subject, implementation) -> ConversionError:
    if str(implementation).startswith("paged|"):
        return ConversionError(f"{subject}: continuous batching (generate_batch) pages keys and values by itself and reads no codes; "
                               "use generate(), or serve the directory with vLLM")
    return ConversionError(f"{subject}: attn_implementation {implementation!r} cannot read codes, expected "
                           f"{NAME!r}; leave it out, or convert with --method commonkv --export folded")


def _refuse_early_exit(coded: ModelParts | None, layer: int | None) -> None:
    for layers in coded.stores if coded is not None and layer is not None else ():
        if layers[0] < layer <= layers[-1]:
            raise ConversionError(f"assistant_early_exit {layer}: layers {layers[0]}-{layers[-1]} are stored together; pass "
                                  f"{layers[-1] + 1}, or draft with another model")


@functools.cache
def _parameters(forward) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)


def _refuse_checkpointing(module: torch.nn.Module) -> None:
    if module.training and any(getattr(part, "gradient_checkpointing", False) for part in module.modules()):
        raise ConversionError("gradient checkpointing drops the cache through which layers read earlier tokens, or fused layers "
                              "others; call gradient_checkpointing_disable()")


def _before_forward(coded: ModelParts, name: str, module: torch.nn.Module, args: tuple, kwargs: dict):
    """Gives a forward pass its cache of codes, and tells the cache which tokens come."""
    if args:
        names = [argument for argument in _parameters(type(module).forward) if argument != "self"]
        kwargs = {**kwargs, **dict(zip(names, args))}
    coded.keep_frequencies()
    if module.config._attn_implementation != NAME:  # set behind set_attn_implementation()
        raise _attention_error(name, module.config._attn_implementation)
    cache = kwargs.pop("past_key_values", None) if kwargs.get(_CACHE) is None else kwargs[_CACHE]
    if cache is None:
        wanted = kwargs.get("use_cache")
        wanted = getattr(module.config.get_text_config(), "use_cache", True) if wanted is None else wanted
        keeps_cache = wanted and not module.training
        if not keeps_cache:
            kwargs["use_cache"] = False
            coded.begin_pass(False)
            if not coded.needs_cache:
                return (), kwargs
        cache = CodedCache(coded)
        cache.is_of_one_pass = not keeps_cache
    elif not isinstance(cache, CodedCache):
        raise ConversionError(f"past_key_values: a {type(cache).__name__} holds no codes, expected a CodedCache; "
                              "leave past_key_values out, or pass model.new_cache()")
    elif cache.codes is not coded:
        raise ConversionError("past_key_values: a cache of another model, whose factors give its codes their meaning; leave "
                              "past_key_values out, or pass model.new_cache()")
    _refuse_checkpointing(module)
    if kwargs.get("output_attentions") or getattr(module.config, "output_attentions", False):
        raise ConversionError("output_attentions: the kernels that read codes and latents keep no probabilities; leave it out")
    coded.begin_pass(True)
    tokens = kwargs.get("inputs_embeds") if kwargs.get("input_ids") is None else kwargs["input_ids"]
    if not isinstance(tokens, torch.Tensor) or tokens.dim() < 2 or tokens.shape[0] == 0:
        found = f"of shape {tuple(tokens.shape)}" if isinstance(tokens, torch.Tensor) else "none" if tokens is None else type(tokens).__name__
        raise ConversionError(f"input_ids: {found}, expected [batch, tokens] with a row at least; pass input_ids or inputs_embeds")
    positions = cache.begin_step(tokens.shape[0], tokens.shape[1], tokens.device, kwargs.get("attention_mask"),
                                 kwargs.get("position_ids"))
    if kwargs.get("attention_mask") is None and cache.padding is not None:  # that of earlier calls
        kwargs["attention_mask"] = cache.padding
    types = kwargs.get("token_type_ids")
    if types is not None and not (types == 1).any():  # no images: a causal text
        del kwargs["token_type_ids"]
    return (), {**kwargs, _CACHE: cache, "position_ids": positions}


def _after_forward(module: torch.nn.Module, args: tuple, kwargs: dict, output):
    """Tells the cache that the pass is complete. The output without a cache that only its own pass needed."""
    cache = kwargs.get(_CACHE)
    if cache is None:
        return output
    cache.end_step()
    if not cache.is_of_one_pass:
        return output
    if isinstance(output, tuple):
        return tuple(part for part in output if part is not cache)
    return type(output)(**{name: part for name, part in output.items() if part is not cache})
