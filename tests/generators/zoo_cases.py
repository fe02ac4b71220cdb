"""The cases of tests/generators/make_zoo.py: every architecture and every variant of it that computes something else.

`off` names what each feature of a case would be without it: config settings, or a function of the weights. The
generator asserts that switching a feature off changes the logits, so that no case passes with the feature ignored.
"""
import dataclasses

SIZES = dict(
    hidden_size=32, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=104, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclasses.dataclass
class Case:
    model_type: str
    settings: dict = dataclasses.field(default_factory=dict)
    off: dict = dataclasses.field(default_factory=dict)  # feature: settings that switch it off
    dtype: str = "bfloat16"  # of the stored weights; everything is computed in float32
    spelling: str = "v5"  # of config.json: that of transformers 5 or of 4
    shard_size: str = "5GB"
    prefix: tuple = ()  # (as saved, as stored) start of the text model's tensor names
    twice: bool = False  # the tied output matrix is stored as well
    stacked: bool = False  # the experts of a layer are stored in one tensor, not one by one
    drop: tuple = ()  # keys of config.json left to their defaults
    renamed: dict = dataclasses.field(default_factory=dict)  # keys of config.json under their other name
    # RoPE depends on the longest sequence of a call: golden tokens come from one pass per step over one sequence.
    by_length: bool = False
    # transformers generates the same tokens with its cache; not where phi3's long factors set in, as 5.17 drops the
    # cache there and goes on with the last token alone.
    cache_agrees: bool = True
    # Cached keys keep the angles of their time, so that a pass without a cache may choose other tokens.
    stale_cache: bool = False


def rope(rope_type="default", theta=10000.0, **parameters):
    return {"rope_type": rope_type, "rope_theta": theta, **parameters}


DEFAULT = dict(rope_parameters=rope())
LINEAR = rope("linear", factor=3.0)
DYNAMIC = rope("dynamic", factor=4.0)
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=8.0, beta_slow=1.0)
MSCALE = rope("yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=8.0, beta_slow=1.0, mscale=0.9,
              mscale_all_dim=0.5)
SHORT, LONG = [1.0, 1.1, 1.3, 1.6], [1.5, 2.5, 4.0, 8.0]


def longrope(pairs):
    return rope("longrope", short_factor=SHORT[:pairs], long_factor=LONG[:pairs])


LLAMA = {
    "llama_mha": Case("llama", dict(num_key_value_heads=4, num_hidden_layers=3), spelling="v4", dtype="float32",
                      drop=("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias")),
    "llama_gqa": Case("llama", dict(rope_parameters=rope(theta=500.0)), shard_size="24KB"),
    "llama_mqa_bias": Case("llama", dict(num_key_value_heads=1, attention_bias=True, mlp_bias=True), dtype="float16"),
    "llama_tied_head_dim": Case("llama", dict(head_dim=16, tie_word_embeddings=True), twice=True),
    "llama_linear": Case("llama", dict(rope_parameters=LINEAR, num_hidden_layers=2), {"scaling": DEFAULT},
                         spelling="v4"),
    "llama_dynamic": Case("llama", dict(rope_parameters=DYNAMIC, max_position_embeddings=16, num_hidden_layers=2),
                          {"scaling": DEFAULT}, spelling="v4", by_length=True, stale_cache=True),
    "llama_llama3": Case("llama", dict(rope_parameters=LLAMA3, head_dim=16, tie_word_embeddings=True,
                                       num_hidden_layers=2), {"scaling": DEFAULT}, spelling="v4"),
    "llama_yarn": Case("llama", dict(rope_parameters=YARN, head_dim=16, num_hidden_layers=2),
                       {"scaling": DEFAULT, "attention factor":
                        dict(rope_parameters=YARN | {"attention_factor": 1.0})}),
    "llama_yarn_untruncated": Case("llama", dict(rope_parameters=YARN | {"truncate": False, "attention_factor": 1.3},
                                                 head_dim=16, num_hidden_layers=2),
                                   {"truncate": dict(rope_parameters=YARN | {"attention_factor": 1.3}),
                                    "scaling": DEFAULT}, spelling="v4"),
}
WINDOWED = {
    "mistral_window": Case("mistral", dict(sliding_window=9, head_dim=16), {"window": dict(sliding_window=None)},
                           spelling="v4"),
    "mistral_full": Case("mistral", dict(sliding_window=None, num_hidden_layers=2), dtype="float16"),
    "ministral": Case("ministral", dict(sliding_window=7, head_dim=16, layer_types=[SLIDING, SLIDING, FULL, SLIDING]),
                      {"window": dict(layer_types=[FULL] * 4), "full layer": dict(layer_types=[SLIDING] * 4)}),
    "mistral_layer_types": Case("ministral", dict(sliding_window=7, head_dim=8, layer_types=[FULL, SLIDING, FULL, SLIDING]),
                                {"window": dict(layer_types=[FULL] * 4)}, renamed={"model_type": "mistral"}),
    "qwen2": Case("qwen2", dict(rope_parameters=rope(theta=1000000.0))),
    "qwen2_window": Case("qwen2", dict(use_sliding_window=True, sliding_window=8, max_window_layers=2),
                         {"window": dict(use_sliding_window=False, layer_types=[FULL] * 4)}, spelling="v4"),
    "qwen2_layer_types": Case("qwen2", dict(use_sliding_window=True, sliding_window=8,
                                            layer_types=[SLIDING, FULL, FULL, SLIDING]),
                              {"window": dict(layer_types=[FULL] * 4)}),
    "qwen3": Case("qwen3", dict(head_dim=16, tie_word_embeddings=True)),
    "qwen3_bias_window": Case("qwen3", dict(head_dim=16, attention_bias=True, use_sliding_window=True,
                                            sliding_window=8, layer_types=[FULL, SLIDING, SLIDING, FULL]),
                              {"window": dict(layer_types=[FULL] * 4)}),
}
GEMMA2 = dict(head_dim=16, sliding_window=8, query_pre_attn_scalar=9, attn_logit_softcapping=3.0,
              final_logit_softcapping=11.0)
GEMMA2_OFF = {
    "window": dict(layer_types=[FULL] * 4), "full layers": dict(layer_types=[SLIDING] * 4),
    "query_pre_attn_scalar": dict(query_pre_attn_scalar=16), "score softcap": dict(attn_logit_softcapping=None),
    "logit softcap": dict(final_logit_softcapping=None), "activation": dict(hidden_activation="silu"),
}
GEMMA3 = dict(head_dim=16, sliding_window=8, query_pre_attn_scalar=9, layer_types=[SLIDING, SLIDING, FULL, SLIDING],
              rope_parameters={FULL: rope("linear", 1000.0, factor=2.0), SLIDING: rope(theta=100.0)})
GEMMA3_OFF = {
    "window": dict(layer_types=[FULL] * 4), "full layer": dict(layer_types=[SLIDING] * 4),
    "query_pre_attn_scalar": dict(query_pre_attn_scalar=16), "activation": dict(hidden_activation="silu"),
    "full layers' rope": dict(rope_parameters={FULL: rope(theta=100.0), SLIDING: rope(theta=100.0)}),
    "local rope": dict(rope_parameters={FULL: rope("linear", 1000.0, factor=2.0), SLIDING: rope(theta=1000.0)}),
}
VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
GEMMA = {
    "gemma": Case("gemma", dict(num_key_value_heads=1, head_dim=16, num_hidden_layers=3),
                  {"activation": dict(hidden_act="silu")}, spelling="v4"),
    "gemma2": Case("gemma2", GEMMA2, GEMMA2_OFF),
    "gemma2_v4": Case("gemma2", GEMMA2 | dict(num_hidden_layers=2, final_logit_softcapping=14.0), spelling="v4"),
    "gemma3_text": Case("gemma3_text", GEMMA3, GEMMA3_OFF),
    "gemma3_text_v4": Case("gemma3_text", GEMMA3 | dict(final_logit_softcapping=12.0),
                           {"logit softcap": dict(final_logit_softcapping=None)}, spelling="v4"),
    "gemma3_nested": Case("gemma3", dict(text_config=SIZES | GEMMA3, vision_config=VISION, mm_tokens_per_image=4)),
    "gemma3_nested_inner": Case("gemma3", dict(text_config=SIZES | GEMMA3, vision_config=VISION,
                                               mm_tokens_per_image=4),
                                prefix=("language_model.model.", "model.language_model.")),
}
PHI = {
    "phi3": Case("phi3", dict(sliding_window=None, rope_parameters=rope(partial_rotary_factor=1.0))),
    "phi3_partial_window": Case("phi3", dict(sliding_window=8, rope_parameters=rope(partial_rotary_factor=0.5)),
                                {"window": dict(sliding_window=None),
                                 "partial": dict(rope_parameters=rope(partial_rotary_factor=1.0))}),
    "phi3_longrope_long": Case("phi3", dict(rope_parameters=longrope(4), original_max_position_embeddings=8,
                                            num_hidden_layers=2),
                               {"scaling": dict(rope_parameters=rope(partial_rotary_factor=1.0)),
                                "long factors": dict(original_max_position_embeddings=128)}),
    "phi3_longrope_crossing": Case("phi3", dict(rope_parameters=longrope(3) | dict(partial_rotary_factor=0.75),
                                                original_max_position_embeddings=36),
                                   {"long factors": dict(original_max_position_embeddings=8)},
                                   spelling="v4", by_length=True, cache_agrees=False),
}
EXPERTS = {
    "mixtral": Case("mixtral", dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=16,
                                    rope_parameters=rope(theta=1000.0)), {"second expert": dict(num_experts_per_tok=1)}),
    "mixtral_window": Case("mixtral", dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=24,
                                           sliding_window=8, num_hidden_layers=2),
                           {"window": dict(sliding_window=None)}, spelling="v4"),
    "qwen3_moe": Case("qwen3_moe", dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12,
                                        norm_topk_prob=True, head_dim=12),
                      {"norm_topk_prob": dict(norm_topk_prob=False), "experts": dict(num_experts_per_tok=2)}),
    "qwen3_moe_dense_layers": Case("qwen3_moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                                                     norm_topk_prob=False, mlp_only_layers=[0], head_dim=12,
                                                     decoder_sparse_step=2),
                                   {"norm_topk_prob": dict(norm_topk_prob=True)}, spelling="v4",
                                   renamed={"num_local_experts": "num_experts"}),
    "mixtral_stacked": Case("mixtral", dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=24,
                                            num_hidden_layers=2), stacked=True),
    "qwen3_moe_stacked_window": Case("qwen3_moe", dict(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True, attention_bias=True,
        use_sliding_window=True, sliding_window=8, num_hidden_layers=2),
        {"window": dict(use_sliding_window=False, sliding_window=None)}, stacked=True),
    "qwen2_moe": Case("qwen2_moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                                        shared_expert_intermediate_size=20, decoder_sparse_step=2,
                                        num_key_value_heads=2), {"experts": dict(num_experts_per_tok=1)}),
    "qwen2_moe_window": Case("qwen2_moe", dict(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=20,
        norm_topk_prob=True, use_sliding_window=True, sliding_window=8, max_window_layers=3, qkv_bias=False),
        {"window": dict(layer_types=[FULL] * 4), "norm_topk_prob": dict(norm_topk_prob=False),
         "full layers": dict(layer_types=[SLIDING] * 4)}, stacked=True, drop=("layer_types",)),
}
MLA = dict(kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12, num_key_value_heads=4)
DEEPSEEK = {
    "deepseek_v2_dense": Case("deepseek_v2", MLA | dict(q_lora_rank=20, first_k_dense_replace=4)),
    "deepseek_v2_lite": Case("deepseek_v2", MLA | dict(
        q_lora_rank=None, rope_parameters=MSCALE, first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, n_shared_experts=2, topk_method="greedy", routed_scaling_factor=1.0),
        {"scaling": DEFAULT, "mscale": dict(rope_parameters={k: v for k, v in MSCALE.items() if "mscale" not in k}),
         "experts": dict(num_experts_per_tok=1)}, spelling="v4"),
    "deepseek_v2_groups": Case("deepseek_v2", MLA | dict(
        q_lora_rank=20, rope_parameters=MSCALE | dict(mscale=0.7, mscale_all_dim=0.7), first_k_dense_replace=1,
        n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=8, n_shared_experts=1,
        topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=2.5),
        {"groups": dict(topk_method="greedy"), "routed_scaling_factor": dict(routed_scaling_factor=1.0)}),
    "deepseek_v2_bias": Case("deepseek_v2", MLA | dict(
        q_lora_rank=20, attention_bias=True, mlp_bias=True, first_k_dense_replace=1, n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=8, n_shared_experts=2, v_head_dim=20, num_hidden_layers=2,
        rope_parameters=rope("linear", factor=3.0, mscale_all_dim=2.0)),
        {"scaling": DEFAULT, "mscale": dict(rope_parameters=rope("linear", factor=3.0))}, stacked=True),
}
OLMO3 = dict(num_key_value_heads=2, sliding_window=8, layer_types=[SLIDING, SLIDING, SLIDING, FULL],
             rope_parameters={FULL: YARN | {"rope_theta": 1000.0}, SLIDING: rope(theta=1000.0)})
OTHERS = {
    "olmo2": Case("olmo2", dict(num_key_value_heads=4)),
    "olmo2_gqa": Case("olmo2", dict(num_key_value_heads=2, num_hidden_layers=2), spelling="v4"),
    "olmo3": Case("olmo3", OLMO3, {
        "window": dict(layer_types=[FULL] * 4), "full layer": dict(layer_types=[SLIDING] * 4),
        "full layers' rope": dict(rope_parameters={FULL: rope(theta=1000.0), SLIDING: rope(theta=1000.0)}),
        "sliding layers' rope": dict(rope_parameters=OLMO3["rope_parameters"] | {SLIDING: rope(theta=100.0)})}),
    "olmo3_v4": Case("olmo3", OLMO3 | dict(num_key_value_heads=4, rope_parameters={
        FULL: YARN | {"rope_theta": 500000.0}, SLIDING: rope(theta=500000.0)}),
        {"scaling": dict(rope_parameters={FULL: rope(theta=500000.0), SLIDING: rope(theta=500000.0)})},
        spelling="v4", drop=("layer_types",)),
    "exaone4": Case("exaone4", dict(head_dim=16, sliding_window=8, rope_parameters=LLAMA3),
                    {"window": dict(layer_types=[FULL] * 4), "full layer": dict(layer_types=[SLIDING] * 4),
                     "nope": dict(sliding_window=None, layer_types=[FULL] * 4)}, drop=("layer_types",)),
    "exaone4_full": Case("exaone4", dict(head_dim=16, sliding_window=None, layer_types=[FULL] * 2, num_hidden_layers=2,
                                         tie_word_embeddings=True), spelling="v4"),
    "seed_oss": Case("seed_oss", dict(head_dim=16), drop=("attention_bias",)),
    "seed_oss_output_bias": Case("seed_oss", dict(head_dim=12, attention_bias=False, attention_out_bias=True, mlp_bias=True,
                                                  num_hidden_layers=2), spelling="v4"),
    "smollm3": Case("smollm3", dict(rope_parameters=rope(theta=1000.0), no_rope_layer_interval=4),
                    {"nope": dict(no_rope_layers=[1] * 4)}),
    "smollm3_list": Case("smollm3", dict(rope_parameters=rope(theta=1000.0), no_rope_layers=[0, 1, 1, 0],
                                         attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
                         {"nope": dict(no_rope_layers=[1] * 4)}, spelling="v4"),
    "granite": Case("granite", dict(embedding_multiplier=2.0, logits_scaling=3.0, residual_multiplier=0.6,
                                    attention_multiplier=0.5),
                    {"embedding": dict(embedding_multiplier=1.0), "logits": dict(logits_scaling=1.0),
                     "residual": dict(residual_multiplier=1.0), "attention": dict(attention_multiplier=0.35)}),
    "starcoder2": Case("starcoder2", dict(num_key_value_heads=1, sliding_window=8, use_bias=True),
                       {"window": dict(sliding_window=None), "activation": dict(hidden_act="silu")}),
    "starcoder2_no_bias": Case("starcoder2", dict(use_bias=False, num_hidden_layers=2, tie_word_embeddings=False),
                               spelling="v4"),
}
CASES = LLAMA | WINDOWED | GEMMA | PHI | EXPERTS | DEEPSEEK | OTHERS
