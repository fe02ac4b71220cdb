#include <fmt/format.h>

#include <map>
#include <utility>

#include "core/arithmetic.h"
#include "core/checkpoint.h"
#include "core/checkpoint_files.h"
#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "core/safetensors.h"

namespace kvc {
namespace {

struct Split {
  std::vector<std::vector<TensorSource>> shards;
  std::uint64_t total_parameters = 0;
  std::uint64_t total_size = 0;
};

// transformers' rule: tensors in their order; one above the limit gets a shard of its own at once
// without closing the current one; a new shard begins when the sum would exceed the limit.
Split split_tensors(const std::string& subject, std::vector<TensorSource> tensors,
                    std::uint64_t shard_bytes) {
  Split split;
  std::vector<TensorSource> current;
  std::uint64_t current_bytes = 0;
  for (TensorSource& tensor : tensors) {
    const std::uint64_t bytes = tensor_bytes(tensor.dtype, tensor.shape,
                                             fmt::format("{}: tensor '{}'", subject, tensor.name));
    split.total_size = checked_add(split.total_size, bytes, subject);
    // Elements fit wherever their bits do.
    split.total_parameters +=
        bytes * 8 / static_cast<std::uint64_t>(bits_per_element(tensor.dtype));
    if (bytes > shard_bytes) {
      split.shards.emplace_back().push_back(std::move(tensor));
      continue;
    }
    if (current_bytes + bytes > shard_bytes) {
      split.shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.push_back(std::move(tensor));
    current_bytes += bytes;
  }
  if (!current.empty()) {
    split.shards.push_back(std::move(current));
  }
  return split;
}

// As Python's json.dumps(index, indent=2, sort_keys=True) writes it: ASCII only.
std::string index_text(const Split& split, const std::map<std::string, std::string>& weight_map) {
  nlohmann::json index;  // sorts its keys
  index["metadata"] = {{"total_parameters", split.total_parameters},
                       {"total_size", split.total_size}};
  index["weight_map"] = weight_map;
  return index.dump(2, ' ', true) + "\n";
}

}  // namespace

void write_checkpoint_tensors(const std::filesystem::path& directory,
                              std::vector<TensorSource> tensors, std::uint64_t shard_bytes) {
  KVC_CHECK(!tensors.empty(), "{}: no tensors to write", directory.string());
  Progress progress("writing tensors", static_cast<std::int64_t>(tensors.size()));
  for (TensorSource& tensor : tensors) {
    tensor.read = [&progress, read = std::move(tensor.read)] {
      progress.advance();
      return read();
    };
  }
  Split split = split_tensors(directory.string(), std::move(tensors), shard_bytes);
  if (split.shards.size() == 1) {
    write_safetensors(directory / kWeightsFile, std::move(split.shards.front()));
    return;
  }
  std::map<std::string, std::string> weight_map;
  for (std::size_t i = 0; i < split.shards.size(); ++i) {
    const std::string file =
        fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, split.shards.size());
    for (const TensorSource& tensor : split.shards[i]) {
      KVC_CHECK(weight_map.emplace(tensor.name, file).second, "{}: tensor '{}' appears twice",
                directory.string(), tensor.name);
    }
    write_safetensors(directory / file, std::move(split.shards[i]));
  }
  write_file(directory / kWeightsIndexFile, index_text(split, weight_map));
}

}  // namespace kvc
