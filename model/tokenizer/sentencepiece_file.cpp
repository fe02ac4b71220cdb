#include "model/tokenizer/sentencepiece_vocabulary.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "core/output.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr std::size_t kMaxModelBytes = 256u << 20;

// Field numbers of sentencepiece_model.proto.
constexpr std::uint32_t kPieces = 1, kNormalizer = 3, kDenormalizer = 5;
constexpr std::uint32_t kPieceText = 1, kPieceScore = 2;
constexpr std::uint32_t kCharsMap = 2;

struct ProtoField {
  std::uint32_t number = 0;
  std::string_view bytes;  // of a length-delimited field or a fixed number; empty for a varint
};

// The fields of one message of a protocol buffer, one after the other.
class ProtoReader {
 public:
  ProtoReader(std::string_view message, const std::string& subject)
      : rest_(message), subject_(subject) {}

  std::optional<ProtoField> next() {
    if (rest_.empty()) return std::nullopt;
    const std::uint64_t key = varint();
    ProtoField field{static_cast<std::uint32_t>(key >> 3), {}};
    check(field.number != 0 && key >> 32 == 0);
    switch (key & 7) {
      case 0:
        varint();
        return field;
      case 1:
        field.bytes = take(8);
        return field;
      case 2:
        field.bytes = take(varint());
        return field;
      case 5:
        field.bytes = take(4);
        return field;
      default:
        check(false);
    }
    return field;
  }

 private:
  void check(bool condition) const {
    KVC_CHECK(condition, "{}: not a sentencepiece model, or damaged; download it again", subject_);
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    check(false);
    return value;
  }

  std::string_view take(std::uint64_t count) {
    check(count <= rest_.size());
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
  const std::string& subject_;
};

std::uint32_t little_endian(std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

void check_piece(std::string_view message, std::size_t index, const std::string& subject) {
  ProtoReader reader(message, subject);
  while (const auto field = reader.next()) {
    if (field->number == kPieceText) {
      KVC_CHECK(
          !first_invalid_utf8(field->bytes) && field->bytes.find('\0') == std::string_view::npos,
          "{}: piece {} is not UTF-8 text; download the file again", subject, index);
    } else if (field->number == kPieceScore && field->bytes.size() == sizeof(float)) {
      KVC_CHECK(std::isfinite(std::bit_cast<float>(little_endian(field->bytes))),
                "{}: the score of piece {} is not finite; download the file again", subject, index);
    }
  }
}

// A precompiled characters map is the size of a double-array trie, the trie and the zero-terminated
// texts that its values point to. A unit's bit 31 marks a value; other units have their child for
// label c at (position ^ offset ^ c), and with bit 8 set their value at (position ^ offset).
bool is_sound_chars_map(std::string_view map) {
  constexpr std::uint32_t kValueBit = 1u << 31, kLeafBit = 1u << 8, kFarBit = 1u << 9;
  if (map.empty()) return true;
  if (map.size() < 4) return false;
  const std::uint32_t trie_bytes = little_endian(map);
  map.remove_prefix(4);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= map.size()) return false;
  const std::size_t num_units = trie_bytes / 4;
  const std::size_t text_bytes = map.size() - trie_bytes;
  if (map.back() != '\0') return false;
  const auto unit_at = [map](std::size_t index) { return little_endian(map.substr(4 * index)); };
  for (std::size_t i = 0; i < num_units; ++i) {
    const std::uint32_t unit = unit_at(i);
    if (i > 0 && (unit & kValueBit))
      continue;  // no label equals it; of the first one none is asked for
    const std::size_t children =
        i ^ (static_cast<std::size_t>(unit >> 10) << ((unit & kFarBit) ? 8 : 0));
    if ((children | 0xFF) >= num_units) return false;
    if ((unit & kLeafBit) && (unit_at(children) & ~kValueBit) >= text_bytes) return false;
  }
  return true;
}

void check_model(std::string_view model, const std::string& subject) {
  std::size_t num_pieces = 0;
  ProtoReader reader(model, subject);
  while (const auto field = reader.next()) {
    if (field->number == kPieces) check_piece(field->bytes, num_pieces++, subject);
    if (field->number != kNormalizer && field->number != kDenormalizer) continue;
    ProtoReader spec(field->bytes, subject);
    while (const auto part = spec.next()) {
      KVC_CHECK(part->number != kCharsMap || is_sound_chars_map(part->bytes),
                "{}: the normalizer's table is damaged; download the file again", subject);
    }
  }
  KVC_CHECK(num_pieces > 0, "{}: no pieces; not a sentencepiece model", subject);
}

}  // namespace

std::string read_sentencepiece_file(const std::filesystem::path& file) {
  std::string model = read_file(file, kMaxModelBytes);
  check_model(model, file.string());
  return model;
}

std::string without_dummy_prefix(std::string model) {
  // Field 3 (normalizer_spec) of two bytes: its field 3 (add_dummy_prefix) is 0.
  constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);
  return model.append(kNoDummyPrefix);
}

}  // namespace kvc
