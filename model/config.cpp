#include "model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/checkpoint_files.h"
#include "core/error.h"
#include "model/config_parts.h"

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
    "no_rope_layer_interval",
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
  const ConfigReader conversion(*converted, subject);
  const std::string family =
      conversion.text(converted->contains("family") ? "family" : "model_type");
  KVC_CHECK(model_type == family || model_type == "kvconvert_" + family,
            "{}: \"model_type\" is \"{}\"; expected \"kvconvert_{}\" or \"{}\"", reader.subject(),
            model_type, family, family);
  return family;
}

bool honours(const ArchSpec& arch, std::string_view key) {
  return (arch.rope_layers == RopeLayers::kListed && key.starts_with("no_rope_layer")) ||
         (arch.latent_attention && key == "kv_lora_rank") ||
         std::any_of(arch.settings.begin(), arch.settings.end(),
                     [&](const Setting& setting) { return setting.key == key; });
}

void refuse_foreign_settings(const ConfigReader& reader, const ArchSpec& arch) {
  for (const char* key : kForeignSettings) {
    const Json* value = reader.find(key);
    KVC_CHECK(value == nullptr || *value == false || honours(arch, key),
              "{}: \"{}\" is set, which {} models do not have; it is not supported",
              reader.subject(), key, arch.model_type);
  }
  // Null, too, lets queries see later tokens.
  KVC_CHECK(!reader.contains("is_causal") || reader.boolean_or("is_causal", false),
            "{}: \"is_causal\" is not true: queries see later tokens, and such attention has no KV "
            "cache; it is not supported",
            reader.subject());
}

// transformers reads the weights of the file that the key names.
void refuse_other_weights(const ConfigReader& top) {
  const std::string key = "transformers_weights";
  const std::string file = top.text_or(key.c_str(), std::string(kWeightsFile));
  KVC_CHECK(file == kWeightsFile || file == kWeightsIndexFile,
            "{}: \"{}\" names \"{}\", but weights are read from {} or {}; rename the file, and "
            "remove the key",
            top.subject(), key, file, kWeightsFile, kWeightsIndexFile);
}

Activation resolve_activation(const ConfigReader& reader, const ArchSpec& arch) {
  constexpr std::pair<std::string_view, Activation> kKnown[] = {
      {"silu", Activation::kSilu},
      {"gelu", Activation::kGelu},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_new", Activation::kGeluTanh},
  };
  const std::string key(arch.activation_key);
  const std::string name = reader.text_or(key.c_str(), std::string(arch.default_activation));
  for (const auto& [known, activation] : kKnown) {
    if (name == known) {
      return activation;
    }
  }
  fail("{}: \"{}\" is \"{}\"; supported: silu, gelu, gelu_pytorch_tanh, gelu_new", reader.subject(),
       key, name);
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
        "{}: \"hidden_size\" {} is not a multiple of \"num_attention_heads\" {}; set \"head_dim\"",
        reader.subject(), config.hidden_size, config.num_heads);
    head_dim = config.hidden_size / config.num_heads;
  }
  KVC_CHECK(head_dim % 2 == 0 && head_dim <= kMaxHeadDim,
            "{}: heads of {} channels cannot be rotated in pairs; expected an even number up to {}",
            reader.subject(), head_dim, kMaxHeadDim);
  return head_dim;
}

// An integer, or the row's value when absent; required where the row has none.
std::int64_t size_or(const ConfigReader& reader, const char* key, std::optional<int> absent,
                     std::int64_t max) {
  return absent ? reader.integer_or(key, *absent, 1, max) : reader.integer(key, 1, max);
}

void read_sizes(const ConfigReader& reader, ModelConfig& config) {
  const ArchSpec& arch = *config.arch;
  config.vocab_size = size_or(reader, "vocab_size", arch.default_vocab_size, kMaxVocabSize);
  config.hidden_size = reader.integer("hidden_size", 1, kMaxHiddenSize);
  config.intermediate_size = reader.integer("intermediate_size", 1, kMaxIntermediateSize);
  config.num_layers = static_cast<int>(reader.integer("num_hidden_layers", 1, kMaxLayers));
  config.num_heads = size_or(reader, "num_attention_heads", arch.default_num_heads, kMaxHeads);
  config.num_kv_heads = resolve_num_kv_heads(reader, config);
  if (arch.latent_attention) {
    config.mla = resolve_mla(reader, config.num_heads);
    config.head_dim = config.mla->qk_head_dim();
  } else {
    config.head_dim = resolve_head_dim(reader, config);
  }
  config.max_position_embeddings =
      size_or(reader, "max_position_embeddings", arch.default_max_positions, kMaxPositions);
}

void read_biases(const ConfigReader& reader, ModelConfig& config) {
  const ArchSpec& arch = *config.arch;
  const bool everywhere =
      arch.biases == BiasRule::kUseBiasKey && reader.boolean_or("use_bias", true);
  const bool attention =
      arch.biases == BiasRule::kAttentionBiasKey && reader.boolean_or("attention_bias", false);
  const bool two_keys = arch.biases == BiasRule::kQkvAndOutputKeys;
  const bool without_output =
      arch.biases == BiasRule::kQueryKeyValue ||
      (arch.biases == BiasRule::kQkvBiasKey && reader.boolean_or("qkv_bias", true)) ||
      (two_keys && reader.boolean_or("attention_bias", true));
  config.attention_bias = without_output || attention || everywhere;
  config.output_bias =
      attention || everywhere || (two_keys && reader.boolean_or("attention_out_bias", false));
  config.mlp_bias = everywhere || (arch.mlp_bias_key && reader.boolean_or("mlp_bias", false));
}

void read_norms(const ConfigReader& reader, ModelConfig& config) {
  const std::string key(config.arch->norm_eps_key);
  config.norm_eps = reader.fraction_or(key.c_str(), config.arch->default_norm_eps);
  KVC_CHECK(config.norm_eps > 0 && config.norm_eps < 1,
            "{}: \"{}\" is {}; expected a small positive number", reader.subject(), key,
            config.norm_eps);
}

// A setting's value: `neutral` where the row has no such setting, 0 where the config says null.
double setting(const ConfigReader& reader, const ArchSpec& arch, const char* key, double neutral) {
  for (const Setting& known : arch.settings) {
    if (known.key == key) {
      const double value = reader.number_or(key, reader.contains(key) ? 0 : known.fallback);
      KVC_CHECK(value >= 0, "{}: \"{}\" is {}; expected a positive number", reader.subject(), key,
                value);
      return value;
    }
  }
  return neutral;
}

void read_scales(const ConfigReader& reader, ModelConfig& config) {
  const auto value = [&](const char* key, double neutral) {
    return setting(reader, *config.arch, key, neutral);
  };
  const auto positive = [&](const char* key, double neutral) {
    const double number = value(key, neutral);
    KVC_CHECK(number > 0, "{}: \"{}\" is {}; expected a positive number", reader.subject(), key,
              number);
    return number;
  };
  const double scalar = positive("query_pre_attn_scalar", static_cast<double>(config.head_dim));
  config.attention_scale = positive("attention_multiplier", 1 / std::sqrt(scalar));
  config.score_softcap = value("attn_logit_softcapping", 0);
  config.logit_softcap = value("final_logit_softcapping", 0);
  config.embedding_scale = positive("embedding_multiplier", 1);
  if (config.arch->scale_embeddings) {
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  }
  config.residual_scale = positive("residual_multiplier", 1);
  config.logit_scale = 1 / positive("logits_scaling", 1);
}

// Latent attention sharpens its scores as the texts that it was extended to grow.
void scale_for_length(ModelConfig& config) {
  const RopeConfig& rope = config.ropes.front();
  if (config.mla && rope.type != RopeType::kDefault && rope.mscale_all_dim != 0) {
    const double magnitude = yarn_magnitude(rope.factor, rope.mscale_all_dim);
    config.attention_scale *= magnitude * magnitude;
  }
}

void resolve_experts(const ConfigReader& reader, ModelConfig& config) {
  config.moe =
      resolve_moe(reader, config.arch->experts, config.num_layers, config.intermediate_size);
  for (std::size_t layer = 0; config.moe && layer < config.layers.size(); ++layer) {
    config.layers[layer].experts = config.moe->layers[layer];
  }
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

// The text model's own config; what only the whole model's says is added.
Json text_config(const ConfigReader& top, const ArchSpec& arch, const std::string& subject) {
  const Json* text = top.object("text_config");
  KVC_CHECK(text != nullptr, "{}: \"text_config\" is missing", top.subject());
  const std::string type =
      ConfigReader(*text, subject).text_or("model_type", std::string(arch.nested_text));
  KVC_CHECK(type == arch.nested_text,
            "{}: \"model_type\" is \"{}\"; expected \"{}\", the only text model that is "
            "supported under \"{}\"",
            subject, type, arch.nested_text, arch.model_type);
  Json merged = *text;
  for (const char* key :
       {"tie_word_embeddings", "eos_token_id", "bos_token_id", "dtype", "torch_dtype"}) {
    if (!merged.contains(key) && top.find(key) != nullptr) {
      merged[key] = *top.find(key);
    }
  }
  return merged;
}

// A type that is known needs no code of the checkpoint's own; that of others is not run.
const ArchSpec& resolve_arch(const ConfigReader& top) {
  const char* code =
      top.contains("auto_map")
          ? ": \"auto_map\" asks for Python code of the checkpoint, which is never run"
          : "";
  return find_arch(family_of(top), top.subject() + code);
}

ModelConfig resolve(const ConfigReader& reader, const ArchSpec& arch) {
  ModelConfig config;
  config.arch = &arch;
  refuse_foreign_settings(reader, arch);
  config.activation = resolve_activation(reader, arch);
  read_sizes(reader, config);
  read_biases(reader, config);
  read_norms(reader, config);
  read_scales(reader, config);
  config.tied_embeddings = reader.boolean_or("tie_word_embeddings", arch.default_tied_embeddings);
  config.ropes = resolve_ropes(reader, config);
  scale_for_length(config);
  config.layers = resolve_layers(reader, config);
  resolve_experts(reader, config);
  config.eos_token_ids = reader.integers("eos_token_id");
  if (reader.find("bos_token_id") != nullptr) {
    config.bos_token_id = reader.integer("bos_token_id", 0, kMaxVocabSize);
  }
  config.dtype = resolve_dtype(reader);
  return config;
}

}  // namespace

ModelConfig parse_model_config(const Json& json, const std::string& subject) {
  KVC_CHECK(json.is_object(), "{}: expected a JSON object", subject);
  const ConfigReader top(json, subject);
  refuse_other_weights(top);
  const ArchSpec& arch = resolve_arch(top);
  if (arch.nested_text.empty()) {
    return resolve(top, arch);
  }
  const std::string text_subject = subject + ": text_config";
  const Json text = text_config(top, arch, text_subject);
  ModelConfig config = resolve(ConfigReader(text, text_subject), arch);
  config.tensor_prefix = "language_model.model.";
  return config;
}

bool ModelConfig::depends_on_length(int index) const {
  const int rope = layer(index).rope;
  return rope >= 0 && ropes[static_cast<std::size_t>(rope)].depends_on_length();
}

double ModelConfig::attention_factor(int index) const {
  const int rope = layer(index).rope;
  return rope >= 0 ? ropes[static_cast<std::size_t>(rope)].attention_factor : 1;
}

bool ModelConfig::same_kind(int layer_a, int layer_b) const {
  return layer(layer_a).window == layer(layer_b).window &&
         layer(layer_a).rope == layer(layer_b).rope;
}

}  // namespace kvc
