// Rotary position embedding: one table per set of parameters, the layers' tables of a model. Formulas as
// transformers computes them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace kvc {

// Inverse frequencies, float32, for texts of `length` tokens (only dynamic and longrope depend on
// it). [rotary_dim / 2]
at::Tensor rope_inverse_frequencies(const RopeConfig& rope, std::int64_t length = 0);

// Angles of positions 0, 1, ... for kernels: cos and sin [num_positions, rotary_dim / 2] float32, times the
// attention factor; undefined without RoPE.
struct RopeRows {
  at::Tensor cos, sin;
  bool interleaved = false;  // pairs (2i, 2i+1), otherwise (i, i + rotary_dim/2)
};

// Not for concurrent use: the table grows on demand, and caches the last lookups. Only kernels require the table,
// which stores all positions; `rotate` and `unrotate` compute the angles of theirs.
class RopeTable {
 public:
  // cos and sin are computed in float32 and cast to `dtype` (as transformers does).
  RopeTable(RopeConfig rope, at::ScalarType dtype);

  // Rotates. x: [num_tokens, num_heads, head_dim], on any device; positions: [num_tokens] int64, on the CPU. Same
  // shape and dtype. The text's length is `length` or the largest position + 1, whichever is more.
  at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions,
                    std::int64_t length = 0) const;
  // The same by the tokens' rows of rows_of_positions(), on the device of x.
  at::Tensor rotate(const at::Tensor& x, const RopeRows& rows) const;
  // The inverses, always in float32.
  at::Tensor unrotate(const at::Tensor& x, const at::Tensor& positions) const;
  at::Tensor unrotate(const at::Tensor& x, const RopeRows& rows) const;
  bool depends_on_length() const { return rope_.depends_on_length(); }
  // Angles of at least `num_positions` positions, if they do not depend on the length of the text.
  RopeRows rows_of_positions(std::int64_t num_positions) const;
  // For how many the table then has room: an eighth is spare.
  static std::int64_t positions_of_table(std::int64_t num_positions);
  // Drops the cached angles, but not the table.
  void forget() const;

 private:
  // The type of angles that turn numbers: `dtype`, or float32 where pairs are neighbouring channels.
  at::ScalarType angle_type() const { return rope_.interleaved ? at::kFloat : dtype_; }
  // cos, sin: [num_tokens, 1, num_pairs] of angle_type().
  at::Tensor turned(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) const;
  struct Angles {
    at::Tensor cos, sin;  // [num_positions, rotary_dim / 2], float32
  };
  struct Rows {
    at::Tensor positions;
    std::uint32_t version = 0;  // of positions, at the time of the lookup
    std::int64_t regime = -1;
    at::Tensor cos, sin;  // [num_tokens, 1, rotary_dim / 2], dtype_ (float32 where interleaved)
  };
  std::int64_t regime_of(std::int64_t length) const;
  const at::Tensor& inverse_frequencies(std::int64_t regime) const;
  Angles angles(std::int64_t regime, const at::Tensor& positions) const;  // [n] on the CPU
  // Every layer looks up the same positions: the last two results are cached.
  const Rows& rows(const at::Tensor& positions, std::int64_t length, at::Device device) const;

  RopeConfig rope_;
  at::ScalarType dtype_;
  struct Frequencies {
    std::int64_t regime = -1;  // the shortest text for which they are valid
    at::Tensor inverse;        // [rotary_dim / 2]
  };
  mutable Frequencies frequencies_[2];  // latest first
  mutable Rows recent_[2];              // likewise
  mutable Angles table_;                // of the first positions
};

// The tables of a model's layers; a layer without RoPE rotates nothing.
class RopeTables {
 public:
  RopeTables(const ModelConfig& config, at::ScalarType dtype);

  bool depends_on_length(int layer) const;
  at::Tensor rotate(int layer, const at::Tensor& x, const at::Tensor& positions,
                    std::int64_t length = 0) const;
  at::Tensor rotate(int layer, const at::Tensor& x, const RopeRows& rows) const;
  at::Tensor unrotate(int layer, const at::Tensor& x, const at::Tensor& positions) const;
  at::Tensor unrotate(int layer, const at::Tensor& x, const RopeRows& rows) const;
  RopeRows rows_of_positions(int layer, std::int64_t num_positions) const;
  void forget() const;

 private:
  std::vector<RopeTable> tables_;
  std::vector<int> table_of_layer_;  // -1: none
};

}  // namespace kvc
