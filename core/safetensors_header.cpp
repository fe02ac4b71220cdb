#include "core/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "core/arithmetic.h"
#include "core/json.h"

namespace kvc {

std::uint64_t tensor_bytes(Dtype dtype, const std::vector<std::int64_t>& shape,
                           std::string_view subject) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : shape) {
    KVC_CHECK(size >= 0, "{}: negative size {} in its shape", subject, size);
    elements = checked_mul(elements, static_cast<std::uint64_t>(size), subject);
  }
  const auto width = static_cast<std::uint64_t>(bits_per_element(dtype));
  const std::uint64_t bits = checked_mul(elements, width, subject);
  KVC_CHECK(bits % 8 == 0, "{}: {} elements of {} do not end on a byte", subject, elements,
            dtype_name(dtype));
  return bits / 8;
}

void check_tensor_name(const std::string& name, std::string_view subject) {
  KVC_CHECK(!name.empty(), "{}: a tensor without a name", subject);
  KVC_CHECK(name.size() <= kMaxNameBytes, "{}: a tensor name of {} bytes, at most {} expected",
            subject, name.size(), kMaxNameBytes);
  const bool printable = std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  KVC_CHECK(printable, "{}: a tensor name with control characters: {}", subject, excerpt(name));
}

namespace {

std::uint64_t read_length(std::span<const std::byte> head) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    length |= std::to_integer<std::uint64_t>(head[i]) << (8 * i);
  }
  return length;
}

std::uint64_t unsigned_integer(const Json& value, const std::string& subject, const char* field) {
  KVC_CHECK(value.is_number_unsigned(), "{}: {} must hold whole numbers from 0 to 2^64-1, found {}",
            subject, field, excerpt(value));
  return value.get<std::uint64_t>();
}

const Json& array_field(const Json& entry, const std::string& subject, const char* field) {
  const auto found = entry.find(field);
  KVC_CHECK(found != entry.end(), "{}: {} is missing", subject, field);
  KVC_CHECK(found->is_array(), "{}: {} must be a list, found {}", subject, field,
            found->type_name());
  return *found;
}

TensorInfo parse_entry(std::string name, const Json& entry, const std::string& file) {
  check_tensor_name(name, file);
  const std::string subject = fmt::format("{}: tensor '{}'", file, name);
  TensorInfo tensor;
  KVC_CHECK(entry.is_object(), "{}: must be an object, found {}", subject, entry.type_name());
  const auto dtype = entry.find("dtype");
  KVC_CHECK(dtype != entry.end() && dtype->is_string(), "{}: dtype is missing or no text", subject);
  const auto parsed = parse_dtype(dtype->get_ref<const std::string&>());
  KVC_CHECK(parsed.has_value(),
            "{}: unknown dtype {}; expected one of safetensors' names (F32, BF16, ...)", subject,
            excerpt(*dtype));
  tensor.dtype = *parsed;
  const Json& shape = array_field(entry, subject, "shape");
  KVC_CHECK(shape.size() <= kMaxRank, "{}: {} dimensions, at most {} expected", subject,
            shape.size(), kMaxRank);
  for (const Json& size : shape) {
    const std::uint64_t value = unsigned_integer(size, subject, "shape");
    KVC_CHECK(value <= std::numeric_limits<std::int64_t>::max(), "{}: dimension {} is too large",
              subject, value);
    tensor.shape.push_back(static_cast<std::int64_t>(value));
  }
  const Json& offsets = array_field(entry, subject, "data_offsets");
  KVC_CHECK(offsets.size() == 2, "{}: data_offsets must be two numbers, found {}", subject,
            offsets.size());
  tensor.begin = unsigned_integer(offsets[0], subject, "data_offsets");
  tensor.end = unsigned_integer(offsets[1], subject, "data_offsets");
  tensor.name = std::move(name);
  return tensor;
}

std::map<std::string, std::string> parse_metadata(const Json& json, const std::string& file) {
  std::map<std::string, std::string> metadata;
  if (json.is_null()) {
    return metadata;
  }
  KVC_CHECK(json.is_object(), "{}: __metadata__ must be an object, found {}", file,
            json.type_name());
  for (const auto& [key, value] : json.items()) {
    KVC_CHECK(value.is_string(), "{}: __metadata__ {} must be text, found {}", file, excerpt(key),
              value.type_name());
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

// Sorts by offset; the tensors must cover the data exactly, each as long as its shape says.
void check_layout(std::vector<TensorInfo>& tensors, std::uint64_t data_bytes,
                  const std::string& file) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t position = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::string subject = fmt::format("{}: tensor '{}'", file, tensor.name);
    KVC_CHECK(tensor.begin == position,
              "{}: data_offsets begin at {}, expected {} (no holes, no overlaps)", subject,
              tensor.begin, position);
    KVC_CHECK(tensor.end >= tensor.begin, "{}: data_offsets end at {}, before they begin at {}",
              subject, tensor.end, tensor.begin);
    const std::uint64_t expected = tensor_bytes(tensor.dtype, tensor.shape, subject);
    KVC_CHECK(tensor.num_bytes() == expected, "{}: {} [{}] needs {} bytes, data_offsets give {}",
              subject, dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "), expected,
              tensor.num_bytes());
    position = tensor.end;
  }
  KVC_CHECK(position <= data_bytes,
            "{}: truncated: the header describes {} bytes of tensors, the file holds {}; copy or "
            "download it again",
            file, position, data_bytes);
  KVC_CHECK(position == data_bytes, "{}: {} bytes follow the last tensor, expected none", file,
            data_bytes - position);
}

}  // namespace

std::vector<TensorInfo> SafetensorsFile::parse_header(
    std::span<const std::byte> head, std::uint64_t file_size, const std::filesystem::path& path,
    std::map<std::string, std::string>* metadata) {
  const std::string file = path.string();
  KVC_CHECK(file_size >= 8 && head.size() >= 8,
            "{}: {} bytes are too few for a safetensors file, expected at least 8", file,
            file_size);
  const std::uint64_t length = read_length(head);
  KVC_CHECK(length <= kMaxHeaderBytes,
            "{}: header of {} bytes, at most {} expected; is it a safetensors file?", file, length,
            kMaxHeaderBytes);
  KVC_CHECK(length <= file_size - 8 && length <= head.size() - 8,
            "{}: truncated: header of {} bytes, the file holds {}; copy or download it again", file,
            length, file_size - 8);
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + 8,
                              static_cast<std::size_t>(length));
  std::vector<TensorInfo> tensors;
  parse_json_members(text, file + ": header", [&](std::string&& name, Json&& value) {
    if (name == "__metadata__") {
      auto parsed = parse_metadata(value, file);
      if (metadata != nullptr) {
        *metadata = std::move(parsed);
      }
      return;
    }
    KVC_CHECK(tensors.size() < kMaxTensors, "{}: more than {} tensors", file, kMaxTensors);
    tensors.push_back(parse_entry(std::move(name), value, file));
  });
  check_layout(tensors, file_size - 8 - length, file);
  return tensors;
}

}  // namespace kvc
