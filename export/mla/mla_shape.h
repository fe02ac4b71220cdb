// Which checkpoints the layout of DeepSeek-V2 holds, and its sizes. A layer caches kv_lora_rank numbers of a latent and
// qk_rope_head_dim of one rotary key per token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/json.h"
#include "model/config.h"

namespace kvc {

struct MlaShape {
  std::int64_t kv_lora_rank = 0;  // even: transformers views what lies behind it as complex numbers
  RopeConfig rope;                // of the rotary key; its rotary_dim is qk_rope_head_dim

  std::int64_t width() const { return kv_lora_rank + rope.rotary_dim; }
};

// Error (starting with `subject`) naming what of the model the layout has no place for.
void check_mla_source(const ModelConfig& config, const std::string& subject);

// All shapes of at most `kept_ratio` of the model's keys and values: rotary keys of several widths, whose frequencies
// are the model's own or lie twice as close. Error where none fits. `config` is one that check_mla_source() let pass.
std::vector<MlaShape> mla_shapes(const ModelConfig& config, double kept_ratio);

// config.json of the export.
Json mla_config(const Checkpoint& checkpoint, const ModelConfig& config, const MlaShape& shape);

}  // namespace kvc
