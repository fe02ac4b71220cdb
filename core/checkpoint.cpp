#include "core/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/checkpoint_files.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/interrupt.h"
#include "core/output.h"
#include "core/safetensors.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxConfigBytes = 16u << 20;

bool same_tensor(const Checkpoint& a, const Checkpoint& b, const std::string& name) {
  return a.info(name).dtype == b.info(name).dtype && a.info(name).shape == b.info(name).shape &&
         std::memcmp(a.bytes(name).data(), b.bytes(name).data(), b.bytes(name).size()) == 0;
}

}  // namespace

bool keeps_weights(const Checkpoint& converted, const Checkpoint& original) {
  const std::vector<std::string> kept = original.tensor_names(), found = converted.tensor_names();
  const bool only_factors_besides =
      std::all_of(found.begin(), found.end(), [&](const std::string& name) {
        return original.contains(name) || name.starts_with("kvconvert.");
      });
  return only_factors_besides &&
         std::all_of(kept.begin(), kept.end(), [&](const std::string& name) {
           check_interrupt();
           return converted.contains(name) && same_tensor(converted, original, name);
         });
}

Checkpoint Checkpoint::open_config_only(const fs::path& directory) {
  check_checkpoint_directory(directory);
  const fs::path path = directory / "config.json";
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  checkpoint.config_text_ = read_file(path, kMaxConfigBytes);
  checkpoint.config_ = parse_json(checkpoint.config_text_, path.string());
  KVC_CHECK(checkpoint.config_.is_object(), "{}: expected a JSON object, found {}", path.string(),
            checkpoint.config_.type_name());
  refuse_quantised_config(checkpoint.config_, path);
  return checkpoint;
}

Checkpoint Checkpoint::open(const fs::path& directory) {
  Checkpoint checkpoint = open_config_only(directory);
  const ShardList list = find_shards(directory);
  for (const std::string& file : list.files) {
    checkpoint.add_shard(file, list.weight_map);
  }
  for (const auto& [name, file] : list.weight_map) {
    KVC_CHECK(checkpoint.contains(name),
              "{}: tensor '{}' is missing; the index says it is in this file",
              (directory / file).string(), name);
  }
  KVC_CHECK(checkpoint.has_weights(), "{}: holds no tensors",
            (directory / list.files.front()).string());
  return checkpoint;
}

// `weight_map` is empty for a checkpoint without an index.
void Checkpoint::add_shard(const std::string& file,
                           const std::map<std::string, std::string>& weight_map) {
  shards_.push_back(std::make_unique<SafetensorsFile>(SafetensorsFile::open(directory_ / file)));
  const SafetensorsFile& shard = *shards_.back();
  refuse_quantised_tensors(shard.tensors(), shard.path());
  for (const TensorInfo& tensor : shard.tensors()) {
    const auto listed = weight_map.find(tensor.name);
    KVC_CHECK(weight_map.empty() || listed != weight_map.end(),
              "{}: tensor '{}' is not in the index", shard.path().string(), tensor.name);
    KVC_CHECK(weight_map.empty() || listed->second == file,
              "{}: tensor '{}' is in this file, the index says it is in {}", shard.path().string(),
              tensor.name, listed->second);
    tensors_.emplace(tensor.name, Entry{shards_.size() - 1, &tensor});
  }
  KVC_CHECK(tensors_.size() <= kMaxTensors, "{}: more than {} tensors", directory_.string(),
            kMaxTensors);
}

std::vector<std::string> Checkpoint::tensor_names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, entry] : tensors_) {
    names.push_back(name);
  }
  return names;
}

const Checkpoint::Entry& Checkpoint::entry(const std::string& name) const {
  const auto found = tensors_.find(name);
  KVC_CHECK(found != tensors_.end(), "{}: tensor '{}' is missing", directory_.string(), name);
  return found->second;
}

const TensorInfo& Checkpoint::info(const std::string& name) const { return *entry(name).info; }

const TensorInfo& Checkpoint::info(const std::string& name,
                                   const std::vector<std::int64_t>& shape) const {
  const TensorInfo& tensor = info(name);
  KVC_CHECK(tensor.shape == shape, "{}: tensor '{}' has shape [{}], config.json makes it [{}]",
            directory_.string(), name, fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
  return tensor;
}

std::span<const std::byte> Checkpoint::bytes(const std::string& name) const {
  const Entry& found = entry(name);
  return shards_[found.shard]->bytes(*found.info);
}

const std::string& Checkpoint::hash() const {
  if (!hash_.empty()) {
    return hash_;
  }
  Sha256 sha;
  // Each part after its length, so that parts cannot run into each other.
  const auto add = [&sha](std::span<const std::byte> part) {
    sha.update(fmt::format("{}:", part.size()));
    sha.update(part);
  };
  add(std::as_bytes(std::span(config_text_)));
  for (const auto& shard : shards_) {
    add(std::as_bytes(std::span(shard->header())));
  }
  for (const auto& [name, found] : tensors_) {
    check_interrupt();
    const std::uint64_t sum = checksum_of(shards_[found.shard]->bytes(*found.info));
    add(std::as_bytes(std::span(&sum, 1)));
  }
  hash_ = sha.hex();
  return hash_;
}

}  // namespace kvc
