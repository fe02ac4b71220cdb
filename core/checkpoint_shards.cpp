#include "core/checkpoint_files.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "core/output.h"
#include "core/safetensors.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxIndexBytes = 256u << 20;
constexpr std::size_t kMaxShards = 10'000;

bool is_plain_safetensors_name(const std::string& file) {
  const bool printable = std::none_of(file.begin(), file.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '/' || c == '\\';
  });
  return printable && !file.starts_with(".") && file.size() <= 255 &&
         file.ends_with(".safetensors");
}

ShardList read_index(const fs::path& path) {
  const std::string subject = path.string();
  const Json index = read_json(path, kMaxIndexBytes);
  KVC_CHECK(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(),
            "{}: expected an object \"weight_map\" of tensor names and files", subject);
  const Json& entries = index["weight_map"];
  KVC_CHECK(!entries.empty(), "{}: weight_map is empty", subject);
  KVC_CHECK(entries.size() <= kMaxTensors, "{}: {} tensors, at most {} expected", subject,
            entries.size(), kMaxTensors);
  ShardList shards;
  std::set<std::string> files;
  for (const auto& [name, file] : entries.items()) {
    check_tensor_name(name, subject);
    KVC_CHECK(file.is_string() && is_plain_safetensors_name(file.get_ref<const std::string&>()),
              "{}: tensor '{}': expected the name of a .safetensors file in this directory, found "
              "{}",
              subject, name, excerpt(file));
    files.insert(file.get<std::string>());
    shards.weight_map.emplace(name, file.get<std::string>());
  }
  KVC_CHECK(files.size() <= kMaxShards, "{}: {} files, at most {} expected", subject, files.size(),
            kMaxShards);
  shards.files.assign(files.begin(), files.end());
  for (const std::string& file : shards.files) {
    KVC_CHECK(fs::exists(path.parent_path() / file),
              "{}: shard {} is missing; copy or download it again", subject, file);
  }
  return shards;
}

}  // namespace

ShardList find_shards(const fs::path& directory) {
  // transformers prefers the single file where both exist.
  if (fs::exists(directory / kWeightsFile)) {
    return {{kWeightsFile}, {}};
  }
  if (fs::exists(directory / kWeightsIndexFile)) {
    return read_index(directory / kWeightsIndexFile);
  }
  fail_without_weights(directory);
}

}  // namespace kvc
