// A checkpoint of grouped-query attention in DeepSeek-V2's layout, as a HuggingFace directory that needs nothing of
// kvconvert. Attention is replaced, everything else is the source's, byte for byte.
#pragma once

#include <filesystem>
#include <string>

#include "core/json.h"
#include "export/mla/mla_shape.h"

namespace kvc {

struct MlaExportOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path covariance;  // covariance.h5 of single layers, with attention's metric
  double kept_ratio = 0.5;           // (kv_lora_rank + qk_rope_head_dim) / (2 * kv_dim), at most
};

// Writes the export into the existing, empty `directory`, in the shape of at most `kept_ratio` for which the statistics of a
// few layers predict the least error. Error where the layout cannot hold the model, and where the statistics are of
// another checkpoint. Returns the shape.
MlaShape export_mla_into(const MlaExportOptions& options, const std::filesystem::path& directory);

}  // namespace kvc
