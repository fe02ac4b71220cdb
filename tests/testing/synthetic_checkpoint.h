// Tiny random HuggingFace checkpoints of every supported architecture, written by the test that
// needs one.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/json.h"

namespace kvc::testing {

struct SyntheticCheckpoint {
  std::string model_type = "llama";
  int num_layers = 4;
  std::int64_t hidden_size = 32;
  std::int64_t num_heads = 4;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 8;  // need not be hidden_size / num_heads
  std::int64_t intermediate_size = 48;
  std::int64_t vocab_size = 96;
  std::int64_t max_position_embeddings = 256;  // tokens
  bool tied_embeddings = false;
  bool attention_bias = false;        // llama, qwen3; qwen2 always has biases of q, k and v
  bool mlp_bias = false;              // llama
  std::string rope_type = "default";  // default, linear, llama3, yarn
  std::string dtype = "float32";      // float32, bfloat16, float16
  // Sliding window in tokens: mistral, and qwen from max_window_layers on.
  std::optional<std::int64_t> window{};
  int max_window_layers = 0;
  bool tokenizer = false;  // also stories260K's tokenizer; vocab_size becomes 512
  std::uint64_t seed = 0;
};

Json synthetic_config(const SyntheticCheckpoint& options);
// Writes config.json and model.safetensors (and tokenizer files) into `directory`, created if need
// be. Weights are scaled so that attention and MLP matter as much as the residual stream.
void write_synthetic_checkpoint(const std::filesystem::path& directory,
                                const SyntheticCheckpoint& options);
// The default one's config.json with `tensors` in place of its weights.
void write_checkpoint_of(const std::filesystem::path& directory,
                         const std::map<std::string, at::Tensor>& tensors);

}  // namespace kvc::testing
