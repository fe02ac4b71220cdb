#include "model/arch.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "core/error.h"

namespace kvc {
namespace {

constexpr ArchSpec gemma2() {
  return {.model_type = "gemma2",
          .architecture = "Gemma2ForCausalLM",
          .norm = NormKind::kRmsPlusOne,
          .norms = NormPlacement::kSandwich,
          .biases = BiasRule::kAttentionBiasKey,
          .activation_key = "hidden_activation",
          .default_activation = "gelu_pytorch_tanh",
          .default_tied_embeddings = true,
          .scale_embeddings = true,
          .default_num_kv_heads = 4,
          .default_head_dim = 256,
          .window = WindowRule::kEvenLayers,
          .default_window = 4096,
          .settings = {{{"query_pre_attn_scalar", 256},
                        {"attn_logit_softcapping", 50},
                        {"final_logit_softcapping", 30}}}};
}

constexpr ArchSpec gemma3_text() {
  ArchSpec arch = gemma2();
  arch.model_type = "gemma3_text";
  arch.architecture = "Gemma3ForCausalLM";
  arch.qk_norm = QkNorm::kPerHead;
  arch.default_vocab_size = 262208;
  arch.default_num_heads = 8;
  arch.default_max_positions = 131072;
  arch.window = WindowRule::kPattern;
  arch.rope = RopeRule::kPerLayerType;
  arch.default_theta = 1000000;
  arch.settings = {{{"query_pre_attn_scalar", 256}, {"final_logit_softcapping", 0}}};
  return arch;
}

constexpr ArchSpec gemma3() {
  ArchSpec arch = gemma3_text();
  arch.model_type = "gemma3";
  arch.architecture = "Gemma3ForConditionalGeneration";
  arch.nested_text = "gemma3_text";
  arch.settings = {{{"query_pre_attn_scalar", 256}}};  // its class caps no logits
  return arch;
}

constexpr ArchSpec olmo2() {
  return {.model_type = "olmo2",
          .architecture = "Olmo2ForCausalLM",
          .norm = NormKind::kRmsWide,
          .norms = NormPlacement::kPost,
          .qk_norm = QkNorm::kWholeProjection,
          .biases = BiasRule::kAttentionBiasKey,
          .default_norm_eps = 1e-5};
}

constexpr ArchSpec olmo3() {
  ArchSpec arch = olmo2();
  arch.model_type = "olmo3";
  arch.architecture = "Olmo3ForCausalLM";
  arch.window = WindowRule::kFixedPattern;
  arch.default_window = 4096;
  arch.window_pattern = 4;
  arch.rope = RopeRule::kPerLayerType;
  arch.default_theta = 500000;
  arch.sliding_theta_key = "rope_theta";
  arch.default_sliding_theta = 500000;
  return arch;
}

constexpr ArchSpec kArchs[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .biases = BiasRule::kAttentionBiasKey,
     .mlp_bias_key = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .default_num_kv_heads = 8,
     .window = WindowRule::kAllLayers,
     .default_window = 4096},
    {.model_type = "ministral",
     .architecture = "MinistralForCausalLM",
     .default_num_kv_heads = 8,
     .window = WindowRule::kAllLayers,
     .default_window = 4096},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .biases = BiasRule::kQueryKeyValue,
     .default_num_kv_heads = 32,
     .window = WindowRule::kFromMaxWindowLayers,
     .default_window = 4096},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .qk_norm = QkNorm::kPerHead,
     .biases = BiasRule::kAttentionBiasKey,
     .default_num_kv_heads = 32,
     .default_head_dim = 128,
     .window = WindowRule::kFromMaxWindowLayers,
     .default_window = 4096},
    {.model_type = "gemma",
     .architecture = "GemmaForCausalLM",
     .norm = NormKind::kRmsPlusOne,
     .biases = BiasRule::kAttentionBiasKey,
     .default_activation = "gelu_pytorch_tanh",
     .default_tied_embeddings = true,
     .scale_embeddings = true,
     .default_num_kv_heads = 16,
     .default_head_dim = 256},
    gemma2(),
    gemma3_text(),
    gemma3(),
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .fused_projections = true,
     .default_norm_eps = 1e-5,
     .window = WindowRule::kAllLayers,
     .reads_layer_types = false,
     .rope = RopeRule::kLongRope,
     .partial_rotary = true},
    olmo2(),
    olmo3(),
    {.model_type = "exaone4",
     .architecture = "Exaone4ForCausalLM",
     .norms = NormPlacement::kPost,
     .qk_norm = QkNorm::kPerHead,
     .default_norm_eps = 1e-5,
     .default_num_kv_heads = 32,
     .window = WindowRule::kPattern,
     .default_window = 4096,
     .window_pattern = 4,
     .rope_layers = RopeLayers::kSliding},
    {.model_type = "seed_oss",
     .architecture = "SeedOssForCausalLM",
     .biases = BiasRule::kQkvAndOutputKeys,
     .mlp_bias_key = true,
     .default_num_kv_heads = 8,
     .default_head_dim = 128},
    {.model_type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .biases = BiasRule::kAttentionBiasKey,
     .mlp_bias_key = true,
     .default_tied_embeddings = true,
     .default_num_kv_heads = 4,
     .window = WindowRule::kLayersWithoutRope,
     .default_theta = 2000000,
     .rope_layers = RopeLayers::kListed},
    {.model_type = "granite",
     .architecture = "GraniteForCausalLM",
     .biases = BiasRule::kAttentionBiasKey,
     .mlp_bias_key = true,
     .settings = {{{"embedding_multiplier", 1},
                   {"logits_scaling", 1},
                   {"residual_multiplier", 1},
                   {"attention_multiplier", 1}}}},
    {.model_type = "starcoder2",
     .architecture = "Starcoder2ForCausalLM",
     .norm = NormKind::kLayer,
     .gated_mlp = false,
     .biases = BiasRule::kUseBiasKey,
     .default_activation = "gelu_pytorch_tanh",
     .norm_eps_key = "norm_epsilon",
     .default_norm_eps = 1e-5,
     .default_tied_embeddings = true,
     .default_num_kv_heads = 2,
     .window = WindowRule::kAllLayers,
     .reads_layer_types = false},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .default_norm_eps = 1e-5,
     .default_num_kv_heads = 8,
     .window = WindowRule::kAllLayers,
     .reads_layer_types = false,
     .default_theta = 1000000,
     .experts = ExpertStyle::kMixtral},
    {.model_type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .biases = BiasRule::kQkvBiasKey,
     .default_num_kv_heads = 16,
     .window = WindowRule::kEvenBelowMaxWindowLayers,
     .default_window = 4096,
     .experts = ExpertStyle::kQwen2},
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .qk_norm = QkNorm::kPerHead,
     .biases = BiasRule::kAttentionBiasKey,
     .default_num_kv_heads = 4,
     .window = WindowRule::kAllLayersIfUsed,
     .default_window = 4096,
     .reads_layer_types = false,
     .experts = ExpertStyle::kQwen},
    {.model_type = "deepseek_v2",
     .architecture = "DeepseekV2ForCausalLM",
     .biases = BiasRule::kAttentionBiasKey,
     .mlp_bias_key = true,
     .experts = ExpertStyle::kDeepseek,
     .latent_attention = true},
};

}  // namespace

std::span<const ArchSpec> supported_archs() { return kArchs; }

const ArchSpec& find_arch(std::string_view model_type, std::string_view subject) {
  std::vector<std::string_view> known;
  for (const ArchSpec& arch : kArchs) {
    if (arch.model_type == model_type) {
      return arch;
    }
    known.push_back(arch.model_type);
  }
  fail("{}: model_type \"{}\" is not supported; supported: {}", subject, model_type,
       fmt::join(known, ", "));
}

}  // namespace kvc
