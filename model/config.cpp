#include "model/config.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "model/config_reader.h"
#include "model/rope_config.h"

namespace kvc {
namespace {

// Caps far above every real model, chosen so that no product of sizes below leaves 63 bits.
constexpr std::int64_t kMaxHiddenSize = std::int64_t{1} << 20;
constexpr std::int64_t kMaxIntermediateSize = std::int64_t{1} << 22;
constexpr std::int64_t kMaxVocabSize = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = std::int64_t{1} << 12;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 13;
constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 13;
constexpr std::int64_t kMaxPositions = INT32_MAX;

// Settings of other families that change what attention or the residual stream computes.
constexpr std::array kForeignSettings = {
    "use_bidirectional_attention",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "attention_chunk_size",
    "no_rope_layers",
    "clip_qkv",
    "use_qk_norm",
    "qk_layernorm",
    "kv_lora_rank",
    "parallel_attention",
    "alibi",
};

std::string family_of(const ConfigReader& reader) {
  const std::string model_type = reader.text("model_type");
  const Json* converted = reader.object("kvconvert");
  if (converted == nullptr) {
    return model_type;
  }
  const std::string subject = reader.subject() + ": kvconvert";
  const std::string family = ConfigReader(*converted, subject).text("model_type");
  KVC_CHECK(model_type == family || model_type == "kvconvert_" + family,
            "{}: \"model_type\" is \"{}\"; expected \"kvconvert_{}\" or \"{}\"", reader.subject(),
            model_type, family, family);
  return family;
}

void refuse_foreign_settings(const ConfigReader& reader, const ArchSpec& arch) {
  for (const char* key : kForeignSettings) {
    const Json* value = reader.find(key);
    KVC_CHECK(value == nullptr || *value == false,
              "{}: \"{}\" is set, which {} models do not have; it is not supported",
              reader.subject(), key, arch.model_type);
  }
  const std::string activation = reader.text_or("hidden_act", "silu");
  KVC_CHECK(activation == "silu", "{}: \"hidden_act\" is \"{}\"; only \"silu\" is supported",
            reader.subject(), activation);
}

// Absent takes the family's default; null means one KV head per query head.
std::int64_t resolve_num_kv_heads(const ConfigReader& reader, const ModelConfig& config) {
  const std::int64_t absent = config.arch->default_num_kv_heads.value_or(config.num_heads);
  const std::int64_t fallback = reader.contains("num_key_value_heads") ? config.num_heads : absent;
  const auto heads = reader.integer_or("num_key_value_heads", fallback, 1, kMaxHeads);
  KVC_CHECK(config.num_heads % heads == 0,
            "{}: {} attention heads cannot share {} key/value heads evenly", reader.subject(),
            config.num_heads, heads);
  return heads;
}

std::int64_t resolve_head_dim(const ConfigReader& reader, const ModelConfig& config) {
  std::int64_t head_dim = 0;
  if (reader.find("head_dim") != nullptr) {
    head_dim = reader.integer("head_dim", 1, kMaxHeadDim);
  } else if (config.arch->default_head_dim && !reader.contains("head_dim")) {
    head_dim = *config.arch->default_head_dim;
  } else {
    KVC_CHECK(
        config.hidden_size % config.num_heads == 0,
        "{}: \"hidden_size\" {} is no multiple of \"num_attention_heads\" {}; say \"head_dim\"",
        reader.subject(), config.hidden_size, config.num_heads);
    head_dim = config.hidden_size / config.num_heads;
  }
  KVC_CHECK(head_dim % 2 == 0 && head_dim <= kMaxHeadDim,
            "{}: heads of {} channels cannot be rotated in pairs; expected an even number up to {}",
            reader.subject(), head_dim, kMaxHeadDim);
  return head_dim;
}

void read_sizes(const ConfigReader& reader, ModelConfig& config) {
  config.vocab_size = reader.integer("vocab_size", 1, kMaxVocabSize);
  config.hidden_size = reader.integer("hidden_size", 1, kMaxHiddenSize);
  config.intermediate_size = reader.integer("intermediate_size", 1, kMaxIntermediateSize);
  config.num_layers = static_cast<int>(reader.integer("num_hidden_layers", 1, kMaxLayers));
  config.num_heads = reader.integer("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads = resolve_num_kv_heads(reader, config);
  config.head_dim = resolve_head_dim(reader, config);
  config.max_position_embeddings = reader.integer("max_position_embeddings", 1, kMaxPositions);
}

void read_biases(const ConfigReader& reader, ModelConfig& config) {
  const ArchSpec& arch = *config.arch;
  const bool attention_bias = reader.boolean_or("attention_bias", false) && arch.attention_bias_key;
  config.attention_bias = arch.qkv_bias_always || attention_bias;
  config.output_bias = attention_bias;
  config.mlp_bias = reader.boolean_or("mlp_bias", false) && arch.mlp_bias_key;
}

// The window of a sliding layer, or nullopt where no layer slides.
std::optional<std::int64_t> sliding_window(const ConfigReader& reader, WindowRule rule) {
  constexpr std::int64_t kDefaultWindow = 4096;  // mistral and qwen, when the key is absent
  const bool off = rule == WindowRule::kNone ||
                   (rule == WindowRule::kFromMaxWindowLayers &&
                    !reader.boolean_or("use_sliding_window", false)) ||
                   (reader.contains("sliding_window") && reader.find("sliding_window") == nullptr);
  if (off) {
    return std::nullopt;
  }
  return reader.integer_or("sliding_window", kDefaultWindow, 1, kMaxPositions);
}

// layer_types, when there are any, decide which layers slide; otherwise the family's rule does.
std::vector<std::optional<std::int64_t>> resolve_windows(const ConfigReader& reader,
                                                         const ModelConfig& config) {
  constexpr std::int64_t kDefaultMaxWindowLayers = 28;
  const WindowRule rule = config.arch->window;
  const auto window = sliding_window(reader, rule);
  const auto types = reader.texts("layer_types");
  KVC_CHECK(types.empty() || types.size() == static_cast<std::size_t>(config.num_layers),
            "{}: \"layer_types\" has {} entries; expected {} (\"num_hidden_layers\")",
            reader.subject(), types.size(), config.num_layers);
  const std::int64_t first =
      rule == WindowRule::kFromMaxWindowLayers
          ? reader.integer_or("max_window_layers", kDefaultMaxWindowLayers, 0, INT32_MAX)
          : 0;
  std::vector<std::optional<std::int64_t>> windows(static_cast<std::size_t>(config.num_layers));
  for (std::size_t layer = 0; layer < windows.size(); ++layer) {
    bool slides = static_cast<std::int64_t>(layer) >= first;
    if (!types.empty()) {
      slides = types[layer] == "sliding_attention";
      KVC_CHECK(slides || types[layer] == "full_attention",
                "{}: layer {} is of type \"{}\"; supported: full_attention, sliding_attention",
                reader.subject(), layer, types[layer]);
      KVC_CHECK(!slides || window,
                "{}: layer {} is sliding_attention, but this {} config sets no sliding window",
                reader.subject(), layer, config.arch->model_type);
    }
    windows[layer] = slides ? window : std::nullopt;
  }
  return windows;
}

std::string resolve_dtype(const ConfigReader& reader) {
  const std::string dtype = reader.text_or("dtype", reader.text_or("torch_dtype", ""));
  constexpr std::array<std::string_view, 5> kKnown = {"", "float32", "bfloat16", "float16",
                                                      "float64"};
  KVC_CHECK(std::find(kKnown.begin(), kKnown.end(), dtype) != kKnown.end(),
            "{}: dtype \"{}\" is not supported; supported: float32, bfloat16, float16, float64",
            reader.subject(), dtype);
  return dtype;
}

}  // namespace

ModelConfig parse_model_config(const Json& json, const std::string& subject) {
  KVC_CHECK(json.is_object(), "{}: expected a JSON object", subject);
  const ConfigReader reader(json, subject);
  ModelConfig config;
  config.arch = &find_arch(family_of(reader), subject);
  refuse_foreign_settings(reader, *config.arch);
  read_sizes(reader, config);
  read_biases(reader, config);
  config.rms_norm_eps = reader.fraction_or("rms_norm_eps", config.rms_norm_eps);
  KVC_CHECK(config.rms_norm_eps >= 0 && config.rms_norm_eps < 1,
            "{}: \"rms_norm_eps\" is {}; expected a small positive number", subject,
            config.rms_norm_eps);
  config.tied_embeddings = reader.boolean_or("tie_word_embeddings", false);
  config.rope = resolve_rope(reader, config.max_position_embeddings);
  config.windows = resolve_windows(reader, config);
  config.eos_token_ids = reader.integers("eos_token_id");
  if (reader.find("bos_token_id") != nullptr) {
    config.bos_token_id = reader.integer("bos_token_id", 0, kMaxVocabSize);
  }
  config.dtype = resolve_dtype(reader);
  return config;
}

std::int64_t ModelConfig::num_parameters() const {
  const std::int64_t attention = (2 * q_dim() + 2 * kv_dim()) * hidden_size;
  const std::int64_t mlp = 3 * intermediate_size * hidden_size;
  const std::int64_t biases = (attention_bias ? q_dim() + 2 * kv_dim() : 0) +
                              (output_bias ? hidden_size : 0) +
                              (mlp_bias ? 2 * intermediate_size + hidden_size : 0);
  const std::int64_t norms = 2 * hidden_size + (arch->qk_norm ? 2 * head_dim : 0);
  const std::int64_t embeddings = (tied_embeddings ? 1 : 2) * vocab_size * hidden_size;
  return embeddings + num_layers * (attention + mlp + biases + norms) + hidden_size;
}

// RoPE and heads are the same in all layers of the supported families.
bool ModelConfig::same_kind(int layer_a, int layer_b) const {
  return windows[static_cast<std::size_t>(layer_a)] == windows[static_cast<std::size_t>(layer_b)];
}

}  // namespace kvc
