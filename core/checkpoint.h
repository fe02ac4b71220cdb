// A HuggingFace checkpoint directory: config.json kept verbatim, tensors from one or several
// safetensors files, memory-mapped. Only headers and requested tensors are read.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/safetensors.h"

namespace kvc {

class Checkpoint {
 public:
  // Reads config.json and all headers. Refuses pickle-only directories, quantised checkpoints, and
  // an index that disagrees with its shards; each with one message and the way out.
  static Checkpoint open(const std::filesystem::path& directory);
  // Reads config.json alone; tensor_names() is empty and has_weights() false.
  static Checkpoint open_config_only(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  const Json& config() const { return config_; }
  bool has_weights() const { return !tensors_.empty(); }

  std::vector<std::string> tensor_names() const;  // sorted
  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
  // Throws Error naming the checkpoint and the tensor when absent.
  const TensorInfo& info(const std::string& name) const;
  // Checks the shape; message has expected and actual.
  const TensorInfo& info(const std::string& name, const std::vector<std::int64_t>& shape) const;
  std::span<const std::byte> bytes(const std::string& name) const;

  // Fingerprint for provenance: SHA-256 over config.json, every shard's header, and the checksum of every tensor
  // (core/checksum.h). Reads all weights, once, on first use.
  const std::string& hash() const;

  // Files to copy beside converted weights (tokenizer, generation config, chat templates,
  // licences), relative to directory(), sorted.
  std::vector<std::filesystem::path> companion_files() const;

 private:
  struct Entry {
    std::size_t shard = 0;
    const TensorInfo* info = nullptr;
  };
  void add_shard(const std::string& file, const std::map<std::string, std::string>& weight_map);
  const Entry& entry(const std::string& name) const;

  std::filesystem::path directory_;
  std::string config_text_;
  Json config_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, Entry> tensors_;
  mutable std::string hash_;
};

// True if `converted` has every tensor of `original`, byte for byte, and besides these only factors (kvconvert.*). Reads both.
bool keeps_weights(const Checkpoint& converted, const Checkpoint& original);

// Splits `tensors` into shards of at most `shard_bytes` as transformers does, writes
// model.safetensors or model-0000i-of-0000n.safetensors plus model.safetensors.index.json into
// `directory`.
void write_checkpoint_tensors(const std::filesystem::path& directory,
                              std::vector<TensorSource> tensors,
                              std::uint64_t shard_bytes = 50'000'000'000ull);

}  // namespace kvc
