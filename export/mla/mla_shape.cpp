#include "export/mla/mla_shape.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/error.h"
#include "export/export_config.h"

namespace kvc {
namespace {

constexpr std::int64_t kWidthsPerHead = 8;  // widths of rotary keys that are tried, up to head_dim
constexpr std::int64_t kDensities[] = {1, 2};  // frequencies per frequency of the model
constexpr std::int64_t kLeastRank = 2;         // a channel of contents and the constant one

// What is kept of the source's settings.
constexpr std::string_view kKeptKeys[] = {"vocab_size",          "hidden_size",
                                          "intermediate_size",   "num_hidden_layers",
                                          "num_attention_heads", "hidden_act",
                                          "rms_norm_eps",        "max_position_embeddings",
                                          "initializer_range",   "use_cache",
                                          "pad_token_id",        "bos_token_id",
                                          "eos_token_id",        "mlp_bias",
                                          "attention_dropout",   "dtype",
                                          "torch_dtype",         "transformers_version"};

bool known_rope(RopeType type) {
  return type == RopeType::kDefault || type == RopeType::kLinear || type == RopeType::kLlama3;
}

bool has_windows(const ModelConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [](const LayerSpec& layer) { return layer.window.has_value(); });
}

bool rotates_all_layers_alike(const ModelConfig& config) {
  return config.ropes.size() == 1 &&
         std::all_of(config.layers.begin(), config.layers.end(),
                     [](const LayerSpec& layer) { return layer.rope == 0; });
}

// The first thing of the model that DeepSeek-V2 does not compute, or an empty string.
std::string foreign_part(const ModelConfig& config) {
  const ArchSpec& arch = *config.arch;
  const bool scaled = config.embedding_scale != 1 || config.residual_scale != 1 ||
                      config.logit_scale != 1 || arch.scale_embeddings;
  const RopeConfig& rope = config.ropes.front();
  const std::pair<bool, std::string> parts[] = {
      {config.mla.has_value(), "latent attention of its own"},
      {config.moe.has_value(), "mixtures of experts"},
      {arch.qk_norm != QkNorm::kNone, "norms of queries and keys behind their projections"},
      {config.attention_bias || config.output_bias, "biases of attention's projections"},
      {has_windows(config), "sliding windows"},
      {config.score_softcap != 0 || config.logit_softcap != 0, "soft caps"},
      {arch.norm != NormKind::kRms || arch.norms != NormPlacement::kPre,
       "norms of another kind or place"},
      {scaled, "scaled embeddings, residuals or logits"},
      {!arch.gated_mlp || config.activation != Activation::kSilu, "an MLP without gated silu"},
      {arch.fused_projections || !arch.nested_text.empty(), "projections under other names"},
      {!rotates_all_layers_alike(config), "layers with different RoPE"},
      {rope.rotary_dim != config.head_dim, "RoPE of a part of each head"},
      {!known_rope(rope.type), "RoPE other than default, linear or llama3"}};
  const auto found =
      std::find_if(std::begin(parts), std::end(parts), [](const auto& part) { return part.first; });
  return found == std::end(parts) ? "" : found->second;
}

// Frequencies base^(-2i/width) equal the model's at every `density`-th i.
RopeConfig rotary_rope(const ModelConfig& config, std::int64_t width, std::int64_t density) {
  RopeConfig rope = config.ropes.front();
  rope.theta = std::pow(
      rope.theta, static_cast<double>(width) / static_cast<double>(config.head_dim * density));
  rope.rotary_dim = width;
  rope.interleaved = true;
  return rope;
}

// The source's parameters under their names, with the new theta; from where resolve_ropes() takes them.
Json rope_parameters(const Json& source, const RopeConfig& rope) {
  Json parameters = Json::object();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (source.contains(key) && source[key].is_object()) {
      parameters = source[key];
    }
  }
  if (rope.original_max_position_embeddings > 0) {
    parameters["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (!parameters.contains("rope_type")) {
    parameters["rope_type"] = parameters.value("type", "default");
  }
  parameters.erase("type");
  parameters["rope_theta"] = rope.theta;
  return parameters;
}

}  // namespace

void check_mla_source(const ModelConfig& config, const std::string& subject) {
  const std::string part = foreign_part(config);
  KVC_CHECK(part.empty(),
            "{}: --export mla: the layout of DeepSeek-V2 has no place for {}, which this {} model "
            "has; leave --export out",
            subject, part, config.arch->model_type);
  KVC_CHECK(config.hidden_size % config.num_heads == 0,
            "{}: --export mla: hidden_size {} is not a multiple of {} heads, which the layout of "
            "DeepSeek-V2 requires; leave --export out",
            subject, config.hidden_size, config.num_heads);
}

std::vector<MlaShape> mla_shapes(const ModelConfig& config, double kept_ratio) {
  const auto plain = static_cast<double>(2 * config.kv_dim());
  const auto width = static_cast<std::int64_t>(std::floor(kept_ratio * plain));
  const std::int64_t step =
      std::max<std::int64_t>(2, config.head_dim / kWidthsPerHead / 2 * 2);  // pairs
  std::vector<MlaShape> shapes;
  for (const std::int64_t density : kDensities) {
    for (std::int64_t rotary = step; rotary <= density * config.head_dim; rotary += step) {
      const std::int64_t rank = (width - rotary) / 2 * 2;
      if (rank >= kLeastRank && width > rotary) {
        shapes.push_back({rank, rotary_rope(config, rotary, density)});
      }
    }
  }
  KVC_CHECK(!shapes.empty(),
            "--export mla --kept-ratio {:g}: a token of a layer would have {} numbers, at least {} "
            "are required; use --kept-ratio {:.3g} or more",
            kept_ratio, width, step + kLeastRank,
            static_cast<double>(step + kLeastRank) / plain + 5e-4);
  return shapes;
}

Json mla_config(const Checkpoint& checkpoint, const ModelConfig& config, const MlaShape& shape) {
  Json json = Json::object();
  json["architectures"] = {"DeepseekV2ForCausalLM"};
  json["model_type"] = "deepseek_v2";
  const Json& source = checkpoint.config();
  for (const std::string_view key : kKeptKeys) {
    const auto found = source.find(std::string(key));
    if (found != source.end()) {
      json[std::string(key)] = *found;
    }
  }
  json["rms_norm_eps"] = config.norm_eps;
  json["hidden_act"] = "silu";
  json["tie_word_embeddings"] = config.tied_embeddings;
  json["num_key_value_heads"] = config.num_heads;
  json["attention_bias"] = true;  // of kv_a_proj_with_mqa and o_proj
  json["first_k_dense_replace"] = config.num_layers;
  json["q_lora_rank"] = nullptr;
  json["kv_lora_rank"] = shape.kv_lora_rank;
  json["qk_nope_head_dim"] = config.head_dim;
  json["qk_rope_head_dim"] = shape.rope.rotary_dim;
  json["v_head_dim"] = config.head_dim;
  json["head_dim"] = shape.rope.rotary_dim;
  json["rope_parameters"] = rope_parameters(source, shape.rope);
  strip_unsafe_keys(json);
  return json;
}

}  // namespace kvc
