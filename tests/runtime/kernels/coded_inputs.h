// Coded tokens of every form of keys, for tests without torch.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernels/coded_attention.h"
#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc::testing {

TileLayout layout_of(const std::vector<std::int64_t>& from_width_one, bool gain);

struct CodedForm {
  std::int64_t num_bases = 0;  // 0: keys and values in one basis and the same tiles
  bool pairs = false, rotated = false;
  std::vector<std::int64_t> values = {};  // coefficients from width 1 on
  bool value_gain = false;
  std::int64_t rotary = 2;  // 0: no channels have RoPE, 1: some, 2: half of them
  bool interleaved = false;
  bool with_means = false;  // in every channel, of rotated keys
};

// Random codes in blocks of two tiles.
class StoredTiles {
 public:
  StoredTiles(const TileLayout& layout, std::int64_t num_tiles, unsigned seed);
  const CodeTiles& tiles() const { return tiles_; }

 private:
  std::vector<std::uint8_t> memory_;
  std::vector<const void*> blocks_;
  CodeTiles tiles_;
};

// Eleven tiles, and decoders of each KV head whose columns are as large as the widths of their codes make them in
// a block with equal errors.
class CodedInputs {
 public:
  CodedInputs(const CodedForm& form, const TileLayout& keys, std::int64_t num_kv_heads,
              std::int64_t head_dim);
  const CodedSegment& segment() const { return segment_; }
  // The same tokens at positions that are no run.
  CodedSegment scattered();
  const RopeAngles& rope() const { return angles_.rope; }

 private:
  void add_rows(const CodedForm& form, std::int64_t head, std::int64_t num_kv_heads,
                std::int64_t head_dim);

  StoredTiles keys_, values_;
  Angles angles_;
  std::vector<CodedKeyRows> rows_;
  std::vector<std::int32_t> positions_;
  CodedSegment segment_;
};

}  // namespace kvc::testing
