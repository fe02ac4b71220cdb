#include <algorithm>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/arithmetic.h"
#include "core/file_writer.h"
#include "core/json.h"
#include "core/safetensors.h"

namespace kvc {
namespace {

std::string subject_of(const std::filesystem::path& path, const TensorSource& tensor) {
  return fmt::format("{}: tensor '{}'", path.string(), tensor.name);
}

// The length word and the header, padded with spaces to a multiple of 8.
std::string make_header(const std::filesystem::path& path,
                        const std::vector<TensorSource>& tensors) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t position = 0;
  for (const TensorSource& tensor : tensors) {
    const std::string subject = subject_of(path, tensor);
    const std::uint64_t end =
        checked_add(position, tensor_bytes(tensor.dtype, tensor.shape, subject), subject);
    Json entry;
    entry["dtype"] = dtype_name(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {position, end};
    text += fmt::format(",{}:{}", Json(tensor.name).dump(), entry.dump());
    position = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  KVC_CHECK(text.size() <= kMaxHeaderBytes, "{}: its header would have {} bytes, at most {} fit",
            path.string(), text.size(), kMaxHeaderBytes);
  std::string length;
  for (int i = 0; i < 8; ++i) {
    length += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return length + text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSource& a, const TensorSource& b) {
    return std::tie(a.dtype, a.name) < std::tie(b.dtype, b.name);
  });
  std::vector<std::string> names;
  for (const TensorSource& tensor : tensors) {
    check_tensor_name(tensor.name, path.string());
    KVC_CHECK(tensor.name != "__metadata__", "{}: a tensor cannot be named __metadata__",
              path.string());
    KVC_CHECK(tensor.shape.size() <= kMaxRank, "{}: {} dimensions, at most {} fit",
              subject_of(path, tensor), tensor.shape.size(), kMaxRank);
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  KVC_CHECK(twice == names.end(), "{}: tensor '{}' appears twice", path.string(), *twice);

  const std::string header = make_header(path, tensors);
  FileWriter file(path);
  file.write(header);
  for (const TensorSource& tensor : tensors) {
    const std::string subject = subject_of(path, tensor);
    const std::uint64_t expected = tensor_bytes(tensor.dtype, tensor.shape, subject);
    const std::span<const std::byte> bytes = tensor.read();
    KVC_CHECK(bytes.size() == expected, "{}: its source gave {} bytes, its shape needs {}", subject,
              bytes.size(), expected);
    file.write(bytes);
  }
  file.finish();
}

void replace_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors) {
  const std::filesystem::path next = path.string() + ".next";
  std::error_code ignored;
  std::filesystem::remove(next, ignored);
  write_safetensors(next, std::move(tensors));
  std::filesystem::rename(next, path);
}

}  // namespace kvc
