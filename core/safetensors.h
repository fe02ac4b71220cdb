// Reading and writing one safetensors file. Reading maps the file and checks the whole header before
// any tensor is used; writing is byte-identical to the Python library's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <string_view>
#include "core/dtype.h"

namespace kvc {

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes, relative to the first data byte
  std::uint64_t end = 0;

  std::uint64_t num_bytes() const { return end - begin; }
};

class MappedFile;

class SafetensorsFile {
 public:
  // Maps `path` and validates the header. Throws Error naming the file and the broken rule.
  static SafetensorsFile open(const std::filesystem::path& path);
  // Validates a header alone: `head` is the file's start (length word and header), `file_size` its
  // whole length. `path` is for messages. open() and the fuzz test call it.
  static std::vector<TensorInfo> parse_header(
      std::span<const std::byte> head, std::uint64_t file_size, const std::filesystem::path& path,
      std::map<std::string, std::string>* metadata = nullptr);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // by offset
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorInfo* find(const std::string& name) const;  // nullptr if absent
  // The tensor's bytes inside the mapping; may be misaligned for its dtype. Valid while a copy of this
  // object lives.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;
  // The raw header text (JSON, without the length word), for fingerprints.
  std::string_view header() const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  std::uint64_t data_begin_ = 0;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// One tensor to be written. `read` is called once, just before writing, so a checkpoint is never in
// memory as a whole; its span must stay valid until the next call.
struct TensorSource {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::function<std::span<const std::byte>()> read;
};

// Writes `path` (created exclusively; fsynced): `__metadata__` {"format":"pt"}, tensors sorted by dtype
// and then name. Throws Error when a source returns another number of bytes than its shape needs, and
// on any write error (disk full), naming the file.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors);
// The same, in place of a file that may exist. A run that is killed leaves the old file, or none, and `<path>.next`.
void replace_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors);

// The rules of a header that reading and writing share.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensors = 1'000'000;
inline constexpr std::size_t kMaxRank = 8;
inline constexpr std::size_t kMaxNameBytes = 512;

// Bytes of a tensor; Error (starting with `subject`) when they overflow or do not end on a byte.
std::uint64_t tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape,
                           std::string_view subject);
// Refuses names that are empty, too long or hold control characters.
void check_tensor_name(const std::string& name, std::string_view subject);

}  // namespace kvc
