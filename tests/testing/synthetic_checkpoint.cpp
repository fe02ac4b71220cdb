#include "tests/testing/synthetic_checkpoint.h"

#include <cmath>
#include <fstream>
#include <utility>
#include <vector>

#include "core/checkpoint.h"
#include "core/error.h"
#include "model/weights.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {
namespace {

constexpr std::int64_t kTokenizerVocabSize = 512;

Json rope_parameters(const SyntheticCheckpoint& options, const ArchSpec& arch) {
  Json rope = {{"rope_type", options.rope_type}, {"rope_theta", 10000.0}};
  if (options.rope_type == "linear") {
    rope["factor"] = 2.0;
  }
  if (options.rope_type == "yarn") {
    rope["factor"] = 4.0;
    rope["original_max_position_embeddings"] = options.max_position_embeddings / 4;
  }
  if (options.rope_type == "llama3") {
    rope["factor"] = 8.0;
    rope["low_freq_factor"] = 1.0;
    rope["high_freq_factor"] = 4.0;
    rope["original_max_position_embeddings"] = 64;
  }
  if (arch.rope == RopeRule::kPerLayerType) {
    const Json sliding = {{"rope_type", "default"}, {"rope_theta", 100.0}};
    return {{"full_attention", std::move(rope)}, {"sliding_attention", sliding}};
  }
  return rope;
}

// Matrices keep the size of what they multiply; norms are near one; biases are small.
at::Tensor random_weight(const NamedShape& tensor, std::uint64_t seed) {
  const at::Tensor normal = random_normal(tensor.shape, seed);
  if (tensor.name.ends_with("norm.weight")) {
    return 1 + 0.1 * normal;
  }
  if (tensor.name.ends_with(".bias")) {
    return 0.1 * normal;
  }
  return tensor.name.ends_with("embed_tokens.weight")
             ? normal
             : normal / std::sqrt(static_cast<double>(tensor.shape.back()));
}

TensorSource source_of(const std::string& name, const at::Tensor& tensor) {
  return {
      name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), [tensor = tensor.contiguous()] {
        return std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
      }};
}

void copy_tokenizer(const std::filesystem::path& directory) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(std::filesystem::path(KVC_TEST_DATA) / "stories260K-hf" / name,
                               directory / name);
  }
}

// Every family reads its own of these.
void add_experts(Json& config) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    config[key] = 4;
  }
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = 16;
  config["shared_expert_intermediate_size"] = 12;
  config["n_shared_experts"] = 1;
  config["first_k_dense_replace"] = 1;
}

void add_latent_attention(const SyntheticCheckpoint& options, Json& config) {
  config["num_key_value_heads"] = options.num_heads;
  config["q_lora_rank"] = 12;
  config["kv_lora_rank"] = 16;
  config["qk_nope_head_dim"] = options.head_dim;
  config["qk_rope_head_dim"] = 4;
  config["v_head_dim"] = 6;
}

// The text model's config: the whole of it for most architectures.
Json text_config(const SyntheticCheckpoint& options, const ArchSpec& arch) {
  Json config = {
      {"architectures", Json::array({arch.architecture})},
      {"model_type", options.model_type},
      {"vocab_size", options.tokenizer ? kTokenizerVocabSize : options.vocab_size},
      {"hidden_size", options.hidden_size},
      {"intermediate_size", options.intermediate_size},
      {"num_hidden_layers", options.num_layers},
      {"num_attention_heads", options.num_heads},
      {"num_key_value_heads", options.num_kv_heads},
      {"head_dim", options.head_dim},
      {"max_position_embeddings", options.max_position_embeddings},
      {std::string(arch.norm_eps_key), 1e-6},
      {std::string(arch.activation_key), arch.default_activation},
      {"tie_word_embeddings", options.tied_embeddings},
      {"rope_parameters", rope_parameters(options, arch)},
      {"bos_token_id", 1},
      {"eos_token_id", 2},
      {"dtype", options.dtype},
  };
  if (arch.biases == BiasRule::kAttentionBiasKey) {
    config["attention_bias"] = options.attention_bias;
  }
  if (arch.experts != ExpertStyle::kNone) {
    add_experts(config);
  }
  if (arch.latent_attention) {
    add_latent_attention(options, config);
  }
  if (arch.mlp_bias_key) {
    config["mlp_bias"] = options.mlp_bias;
  }
  if (arch.window != WindowRule::kNone) {
    config["sliding_window"] = options.window ? Json(*options.window) : Json(nullptr);
  }
  if (arch.window == WindowRule::kFromMaxWindowLayers ||
      arch.window == WindowRule::kLayersWithoutRope) {
    config["use_sliding_window"] = options.window.has_value();
  }
  if (arch.window == WindowRule::kFromMaxWindowLayers) {
    config["max_window_layers"] = options.max_window_layers;
  }
  return config;
}

Json write_config(const std::filesystem::path& directory, const SyntheticCheckpoint& options) {
  std::filesystem::create_directories(directory);
  Json json = synthetic_config(options);
  std::ofstream(directory / "config.json") << dump_json(json);
  return json;
}

}  // namespace

Json synthetic_config(const SyntheticCheckpoint& options) {
  const ArchSpec& arch = find_arch(options.model_type, "synthetic checkpoint");
  Json text = text_config(options, arch);
  if (arch.nested_text.empty()) {
    return text;
  }
  Json config = {{"architectures", text["architectures"]}, {"model_type", options.model_type}};
  text.erase("architectures");
  text["model_type"] = arch.nested_text;
  config["text_config"] = std::move(text);
  return config;
}

void write_synthetic_checkpoint(const std::filesystem::path& directory,
                                const SyntheticCheckpoint& options) {
  const Json json = write_config(directory, options);
  const at::ScalarType dtype = parse_scalar_type(options.dtype);
  std::vector<TensorSource> tensors;
  std::uint64_t seed = options.seed * 1'000'003;
  for (const NamedShape& tensor : model_tensors(parse_model_config(json, "synthetic checkpoint"))) {
    tensors.push_back(source_of(tensor.name, random_weight(tensor, ++seed).to(dtype)));
  }
  write_checkpoint_tensors(directory, std::move(tensors));
  if (options.tokenizer) {
    copy_tokenizer(directory);
  }
}

void write_checkpoint_of(const std::filesystem::path& directory,
                         const std::map<std::string, at::Tensor>& tensors) {
  write_config(directory, {});
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors) {
    sources.push_back(source_of(name, tensor));
  }
  write_checkpoint_tensors(directory, std::move(sources));
}

}  // namespace kvc::testing
