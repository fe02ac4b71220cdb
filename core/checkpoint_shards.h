// Which safetensors files make up a checkpoint.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace kvc {

struct ShardList {
  std::vector<std::string> files;  // sorted, inside the checkpoint's directory
  // The index's tensor -> file; empty for a single file.
  std::map<std::string, std::string> weight_map;
};

// model.safetensors, or else the files of model.safetensors.index.json. If neither exists, the
// Error names what is there instead and the way out.
ShardList find_shards(const std::filesystem::path& directory);

}  // namespace kvc
