// Which files make up a checkpoint, and which checkpoints are not read.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/safetensors.h"

namespace kvc {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightsIndexFile = "model.safetensors.index.json";

struct ShardList {
  std::vector<std::string> files;  // sorted, inside the checkpoint's directory
  // The index's tensor -> file; empty for a single file.
  std::map<std::string, std::string> weight_map;
};

// model.safetensors, or else the files of model.safetensors.index.json. If neither exists, the
// Error names what is there instead and the way out.
ShardList find_shards(const std::filesystem::path& directory);

// Error when config.json says how the weights are quantised, at its top or in a nested text_config.
void refuse_quantised_config(const Json& config, const std::filesystem::path& path);
// Error when a shard's header shows quantised weights that the config does not mention: packed
// integers with their scales, float8, float4.
void refuse_quantised_tensors(std::span<const TensorInfo> tensors,
                              const std::filesystem::path& path);
// Throws the Error for a directory without safetensors weights: what is there instead, and the way
// out.
[[noreturn]] void fail_without_weights(const std::filesystem::path& directory);
// Error unless `directory` has a config.json.
void check_checkpoint_directory(const std::filesystem::path& directory);

}  // namespace kvc
