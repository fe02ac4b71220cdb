#!/usr/bin/env python3
"""vLLM refuses what codes do not support when it reads its configuration, with the reason and the way out.

Runs in an environment with vllm and the plugin. Nothing here starts an engine.
"""

import contextlib
import json
import os
import shutil
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from vllm.compilation.backends import split_graph
from vllm.config import CompilationConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, UniformTypeKVCacheSpecs
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm_checkpoints import convert
from vllm_random import make

from kvconvert._ops import ENVIRONMENT, ops
from kvconvert.vllm.latent_inputs import hold_inputs
from kvconvert.vllm.models import model_class
from kvconvert.vllm.refusals import refuse_unsupported
from kvconvert.vllm.rope import key_rope
from kvconvert.vllm.spec import LaterHits, paged_spec, plain_spec


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        cls.head = convert(cls.root / "head", "--form", "rotated")
        cls.group = convert(cls.root / "group", "--scope", "group")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def refused(self, *reasons: str, model: Path | None = None, **settings) -> None:
        with self.assertRaises(ValueError) as caught:
            EngineArgs(model=str(model or self.head), **settings).create_engine_config()
        for reason in reasons:
            self.assertIn(reason, str(caught.exception))

    def changed(self, name: str, edit, original: Path | None = None) -> Path:
        """A copy of a conversion, to codes if it is not named, whose plan `edit` has changed."""
        copy = self.root / name
        shutil.copytree(original or self.head, copy)
        config = json.loads((copy / "config.json").read_text())
        edit(config)
        (copy / "config.json").write_text(json.dumps(config))
        return copy

    def test_accepts_a_conversion_without_flags(self) -> None:
        config = EngineArgs(model=str(self.head)).create_engine_config()
        self.assertEqual(config.model_config.architecture, "KVConvertLlamaForCausalLM")

    def test_accepts_drafts_without_a_cache(self) -> None:
        draft = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
        EngineArgs(model=str(self.head), speculative_config=draft).create_engine_config()

    def test_coded_cache_is_not_coded_again(self) -> None:
        self.refused("--kv-cache-dtype fp8", "remove the flag", kv_cache_dtype="fp8")

    def test_blocks_are_whole_tiles(self) -> None:
        self.refused("--block-size is 16", "multiple of 32", block_size=16)

    def test_drafts_with_a_cache(self) -> None:
        draft = {"method": "draft_model", "model": str(self.head), "num_speculative_tokens": 2}
        self.refused("'draft_model'", "ngram", speculative_config=draft)

    def test_connectors(self) -> None:
        connector = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
        self.refused("--kv-transfer-config", kv_transfer_config=connector)

    def test_offloading(self) -> None:
        self.refused("offloading", kv_offloading_size=1.0)

    def test_context_parallel(self) -> None:
        self.refused(
            "decode_context_parallel_size is 2", "must be 1", tensor_parallel_size=2, decode_context_parallel_size=2
        )

    def test_micro_batches(self) -> None:
        self.refused("--enable-dbo", "stored together", enable_dbo=True)

    def test_devices(self) -> None:
        config = EngineArgs(model=str(self.head), dtype="float32").create_engine_config()
        for device, reason in (("cuda", "--dtype is float32; pass --dtype bfloat16"), ("xpu", "not on xpu")):
            config.device_config.device_type = device
            with self.assertRaisesRegex(ValueError, reason):
                refuse_unsupported(config)
        config.device_config.device_type, config.model_config.dtype = "cuda", torch.float16
        refuse_unsupported(config)

    def test_codes_over_all_heads_are_not_split(self) -> None:
        self.refused("over all 2 KV heads", "--scope head", model=self.group, tensor_parallel_size=2)

    def test_exact_tokens(self) -> None:
        def keep(config: dict) -> None:
            config["kvconvert"]["plan"]["policy"] |= {"window_tokens": 128, "sink_tokens": 4}

        self.refused("the first 4 and last 128 tokens stay exact", "keeps none of the first", "--for vllm", model=self.changed("window", keep))

    def test_token_policies(self) -> None:
        def drop(config: dict) -> None:
            config["kvconvert"]["plan"]["policy"]["rule"] = "h2o"

        self.refused("token policy 'h2o'", model=self.changed("policy", drop))

    def test_other_methods(self) -> None:
        def other(config: dict) -> None:
            plan = config["kvconvert"]["plan"]
            plan |= {"method": "minicache", "layers": ["paired"] * len(plan["layers"])}

        self.refused("method minicache: kvrun alone runs paired layers", "--method coded, pca", "--export folded", model=self.changed("minicache", other))

    def latents(self, name: str, edit) -> Path:
        """A copy of a conversion to latents, whose part `kvconvert` of the configuration `edit` has changed, and the model's heads with it."""
        if not hasattr(type(self), "latent"):
            type(self).latent = convert(self.root / "latent", "--method", "pca")

        def change(config: dict) -> None:
            edit(config["kvconvert"])
            config["head_dim"] = config["kvconvert"]["plan"]["head_dim"]

        return self.changed(name, change, self.latent)

    def test_accepts_latents(self) -> None:
        EngineArgs(model=str(self.latents("accepted", lambda conversion: None))).create_engine_config()

    def test_latents_stay_on_one_rank(self) -> None:
        model = self.latents("ranks", lambda conversion: None)
        self.refused("a latent is of all 2 KV heads", "2 tensor parallel ranks", model=model, tensor_parallel_size=2)

    def test_latents_of_weights_refuse_adapters(self) -> None:
        def of_weights(conversion: dict) -> None:
            conversion["plan"]["policy"]["rule"] = "none"
            for group in conversion["plan"]["groups"]:
                del group["basis"]

        weights, adapted = self.latents("weights", of_weights), self.latents("adapted", lambda conversion: None)
        self.refused("LoRA changes", "--method pca", model=weights, enable_lora=True)
        for name in ("dummy", "sharded_state", "runai_streamer_sharded"):
            self.refused(f"--load-format {name} does not load the factors", model=weights, load_format=name)
            EngineArgs(model=str(adapted), load_format=name).create_engine_config()
        EngineArgs(model=str(adapted), enable_lora=True).create_engine_config()
        for model, refusal in ((adapted, contextlib.nullcontext()), (weights, self.assertRaisesRegex(ValueError, "--quantization fp8 waits"))):
            config = EngineArgs(model=str(model)).create_engine_config()
            config.model_config.quantization = "fp8"
            with refusal:
                refuse_unsupported(config)

    def test_weights_are_loaded_once(self) -> None:
        served = model_class("LlamaForCausalLM")
        with self.assertRaisesRegex(ValueError, "restart the engine"):
            served.load_weights(types.SimpleNamespace(kvconvert_loaded=True), [])

    def test_any_layer_of_a_group_names_the_manager(self) -> None:
        full = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32)
        beside, paged = plain_spec(full, 64), paged_spec(full, 100)
        self.assertEqual((beside.sliding_window, beside.page_size_bytes), (64, full.page_size_bytes))
        for specs in ({"a": beside, "b": paged}, {"b": paged, "a": beside}):
            group = UniformTypeKVCacheSpecs.from_specs(specs)
            self.assertIs(KVCacheSpecRegistry.get_manager_class(next(iter(group.kv_cache_specs.values()))), LaterHits)

    def test_latents_on_gpus(self) -> None:
        def of(rank: int, **changes):
            def edit(conversion: dict) -> None:
                conversion["plan"] |= changes
                for group in conversion["plan"]["groups"]:
                    group["rank"] = rank

            return edit

        for name, edit, reason in (
            ("taken", of(64), None),
            ("rank", of(100), "latents of rank 100 run on the CPU, and GPUs take multiples of 8; convert with --rank-multiple 8"),
            ("heads", of(64, head_dim=256), "latents of heads of 256 channels run on the CPU"),
        ):
            with self.subTest(name):
                config = EngineArgs(model=str(self.latents(f"gpu-{name}", edit)), dtype="bfloat16").create_engine_config()
                config.device_config.device_type = "cuda"
                if reason is None:
                    refuse_unsupported(config)
                    config.model_config.dtype = torch.float32
                    reason = "on a GPU latents serve bfloat16 and float16, and --dtype is float32"
                with self.assertRaisesRegex(ValueError, reason):
                    refuse_unsupported(config)

    def test_latents_of_other_conversions(self) -> None:
        def policy(**changes):
            return lambda conversion: conversion["plan"]["policy"].update(changes)

        def merged(conversion: dict) -> None:
            for group in conversion["plan"]["groups"]:
                del group["basis"]

        def of_request(conversion: dict) -> None:
            conversion["plan"]["groups"][0]["basis"] = "request"

        for name, edit, reasons in (
            ("sinks", policy(sink_tokens=4), ("the first 4 and last 0 tokens stay exact", "--for vllm")),
            ("blocks", policy(block_tokens=8), ("keeps 8 generated tokens exact", "--for vllm")),
            ("merged", merged, ("merged tokens (rule ls)", "--merge none")),
            ("request", of_request, ("a basis for each prompt", "--method xkv-static")),
            ("integers", lambda conversion: conversion["settings"].update(kv_dtype="int8"), ("latents of int8",)),
        ):
            with self.subTest(name):
                self.refused(*reasons, model=self.latents(f"latents-{name}", edit))

    def fused(self, name: str, edit) -> Path:
        if not hasattr(type(self), "fused_layers"):
            type(self).fused_layers = convert(self.root / "fused", "--method", "fusedkv", "--force")
        return self.changed(name, lambda config: edit(config["kvconvert"]), self.fused_layers)

    def test_fused_layers(self) -> None:
        def edited(**changes):
            return lambda conversion: conversion["plan"]["fused"][2].update(changes)

        EngineArgs(model=str(self.fused("fused-accepted", edited())), tensor_parallel_size=2).create_engine_config()
        mapped = self.fused("fused-heads", edited(key_heads=[0, 1, 1, 0]))
        self.refused("layer 8 read other heads", "--head-map search", model=mapped, tensor_parallel_size=2)
        self.refused("no projections of keys and values", "LoRA", model=self.fused("fused-adapted", edited()), enable_lora=True)
        self.refused("matrices, which combine keys before RoPE", "--fusion vectors", model=self.fused("fused-full", edited(form="full")))
        config = EngineArgs(model=str(self.fused("fused-device", edited())), dtype="bfloat16").create_engine_config()
        config.device_config.device_type = "cuda"
        refuse_unsupported(config)
        config.model_config.dtype = torch.float32
        with self.assertRaisesRegex(ValueError, "on a GPU fused layers serve bfloat16 and float16, and --dtype is float32"):
            refuse_unsupported(config)

    def test_families_of_transformers_classes(self) -> None:
        def other(config: dict) -> None:
            config["model_type"] = "kvconvert_olmo2"

        self.refused("does not serve olmo2", "transformers' classes", model=self.changed("olmo2", other))

    def test_other_formats(self) -> None:
        self.refused("kvconvert.format is 99, expected 1", model=self.changed("format", lambda config: config["kvconvert"].update(format=99)))

    def test_missing_operators(self) -> None:
        with mock.patch("kvconvert.vllm.refusals.ops", ops.__wrapped__), mock.patch.dict(os.environ, {ENVIRONMENT: "/nowhere/ops.so"}):
            self.refused("KVCONVERT_OPS names no file: /nowhere/ops.so")

    def test_reports_of_exact_prompts_are_a_warning(self) -> None:
        model = self.changed("exact", lambda config: config["kvconvert"]["plan"]["policy"].update(prefill="exact"))
        with self.assertLogs("kvconvert.vllm.refusals", "WARNING") as shown:
            EngineArgs(model=str(model)).create_engine_config()
        self.assertIn("more is lost than its report states; convert with --for vllm", shown.output[0])

    def test_positions_beyond_the_tables(self) -> None:
        class Rotary(torch.nn.Module):
            def _compute_cos_sin_cache(self) -> torch.Tensor:
                return torch.ones(1024, 32)

        self.assertEqual(key_rope(Rotary(), 1024)[0][0].shape, (1024, 16))
        with self.assertRaisesRegex(ValueError, "RoPE has 1024 positions, and --max-model-len is 1025; lower it"):
            key_rope(Rotary(), 1025)

    def test_float16_of_families_that_lose_by_it(self) -> None:
        gemma = convert(self.root / "gemma2-codes", "--form", "rotated", "--num-sequences", "8", "--seq-len", "256",
                        source=make("gemma2", self.root / "gemma2"))
        self.refused("does not support float16", model=gemma, dtype="float16")
        EngineArgs(model=str(gemma), dtype="float32").create_engine_config()

    def test_no_graph_holds_the_inputs_of_latents(self) -> None:
        class Projection(torch.nn.Module):
            def forward(self, hidden):
                return hidden * 2, None

        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.projection = Projection()

            def forward(self, hidden):
                qkv, _ = self.projection(hidden)
                return torch.relu(qkv)

        layer, compilation = Layer(), CompilationConfig(splitting_ops=["vllm::unified_attention_with_output"])
        for name in ("first", "second"):
            hold_inputs(layer.projection, name, compilation)
        traced = make_fx(layer, tracing_mode="fake")(torch.ones(2, 3))
        _, pieces = split_graph(traced, compilation.splitting_ops)
        alone = [[node.target for node in piece.graph.graph.nodes if node.op == "call_function"]
                 for piece in pieces if piece.is_splitting_graph]
        hold = torch.ops.vllm.kvconvert_hold_inputs.default
        self.assertEqual(alone, [[hold, hold]])
        self.assertEqual(len(pieces), 3)

    def test_plans_of_other_models(self) -> None:
        for name, value in (("num_key_value_heads", 1), ("head_dim", 64)):
            other = self.changed(f"other_{name}", lambda config: config.update({name: value}))
            self.refused(f"{other}/config.json: the plan is for 12 layers of 2 KV heads of 32 channels", model=other)

    def test_no_plan(self) -> None:
        self.refused("no kvconvert.plan", model=self.changed("plain", lambda config: config.pop("kvconvert")))
        self.refused("no kvconvert.plan", model=self.changed("list", lambda config: config.update(kvconvert=[1])))

    def test_damaged_plans_name_the_file(self) -> None:
        for name, edit in (("coded", lambda plan: plan.pop("coded")), ("null", lambda plan: plan.update(coded=[None])),
                           ("heads", lambda plan: plan.pop("num_kv_heads")), ("text", lambda plan: plan.update(num_kv_heads="2"))):
            damaged = self.changed(f"damaged_{name}", lambda config: edit(config["kvconvert"]["plan"]))
            self.refused(f"{damaged}/config.json: ", "again", model=damaged, tensor_parallel_size=2)


if __name__ == "__main__":
    unittest.main()
