#include "model/rope.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "core/arithmetic.h"
#include "model/fused_ops.h"

namespace kvc {
namespace {

// One past the largest position.
std::int64_t length_of(const at::Tensor& positions) {
  return positions.numel() == 0 ? 0 : positions.max().item<std::int64_t>() + 1;
}

// [x1 cos - x2 sin, x2 cos + x1 sin], both halves rounded as transformers rounds them.
at::Tensor rotate_halves(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  return at::cat({first * cos - second * sin, second * cos + first * sin}, -1);
}

// The same for pairs (2i, 2i+1), in float32.
at::Tensor rotate_neighbours(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor pairs = x.to(at::kFloat).unflatten(-1, {-1, 2});
  const at::Tensor first = pairs.select(-1, 0), second = pairs.select(-1, 1);
  return at::stack({first * cos - second * sin, second * cos + first * sin}, -1)
      .flatten(-2)
      .to(x.scalar_type());
}

// Rotates the leading channels that cos and sin cover.
at::Tensor rotate_leading(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                          bool interleaved) {
  const auto rotated = [&](const at::Tensor& part) {
    return interleaved ? rotate_neighbours(part, cos, sin) : rotate_halves(part, cos, sin);
  };
  const std::int64_t rotary_dim = 2 * cos.size(-1), passed = x.size(-1) - rotary_dim;
  return passed == 0
             ? rotated(x)
             : at::cat({rotated(x.narrow(-1, 0, rotary_dim)), x.narrow(-1, rotary_dim, passed)},
                       -1);
}

// Rows of numbers that stay, in memory apart from that of tensors that come and go.
at::Tensor lasting(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kAlignment = 64, kBytes = sizeof(float);
  void* memory = std::aligned_alloc(
      kAlignment, static_cast<std::size_t>(round_up(rows * width * kBytes, kAlignment)));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return at::from_blob(memory, {rows, width}, std::free, at::kFloat);
}

}  // namespace

RopeTable::RopeTable(RopeConfig rope, at::ScalarType dtype)
    : rope_(std::move(rope)), dtype_(dtype) {}

std::int64_t RopeTable::regime_of(std::int64_t length) const {
  if (rope_.type == RopeType::kDynamic) {
    return static_cast<double>(length) > rope_.max_position_embeddings ? length : 0;
  }
  const double original = rope_.original_max_position_embeddings;
  return rope_.type == RopeType::kLongRope && static_cast<double>(length) > original
             ? static_cast<std::int64_t>(original) + 1
             : 0;
}

const at::Tensor& RopeTable::inverse_frequencies(std::int64_t regime) const {
  if (frequencies_[0].regime != regime) {
    std::swap(frequencies_[0], frequencies_[1]);
  }
  if (frequencies_[0].regime != regime) {
    frequencies_[0] = {regime, rope_inverse_frequencies(rope_, regime)};
  }
  return frequencies_[0].inverse;
}

RopeTable::Angles RopeTable::angles(std::int64_t regime, const at::Tensor& positions) const {
  const at::Tensor turns = at::outer(positions.to(at::kFloat), inverse_frequencies(regime));
  const at::Tensor cos = turns.cos().mul_(rope_.attention_factor);
  return {cos, turns.sin_().mul_(rope_.attention_factor)};
}

const RopeTable::Rows& RopeTable::rows(const at::Tensor& positions, std::int64_t length,
                                       at::Device device) const {
  const std::uint32_t version = positions.is_inference() ? 0 : positions._version();
  const std::int64_t regime =
      rope_.depends_on_length() ? regime_of(std::max(length, length_of(positions))) : 0;
  const auto fits = [&](const Rows& rows) {
    return rows.regime == regime && rows.cos.device() == device;
  };
  const auto holds = [&](const Rows& rows) {
    return fits(rows) && rows.positions.is_same(positions) && rows.version == version;
  };
  // Texts of one length have equal positions, each its own tensor.
  const auto equals = [&](const Rows& rows) {
    return fits(rows) && !rows.positions.is_inference() &&
           rows.version == rows.positions._version() && at::equal(rows.positions, positions);
  };
  if (!holds(recent_[0])) {
    std::swap(recent_[0], recent_[1]);
  }
  if (!holds(recent_[0]) && equals(recent_[0])) {
    recent_[0].positions = positions;
    recent_[0].version = version;
  }
  if (!holds(recent_[0])) {
    const Angles found = angles(regime, positions);
    recent_[0] = {positions, version, regime, found.cos.unsqueeze(1).to(device, angle_type()),
                  found.sin.unsqueeze(1).to(device, angle_type())};
  }
  return recent_[0];
}

at::Tensor RopeTable::rotate(const at::Tensor& x, const at::Tensor& positions,
                             std::int64_t length) const {
  const Rows& found = rows(positions, length, x.device());
  return turned(x, found.cos, found.sin);
}

at::Tensor RopeTable::rotate(const at::Tensor& x, const RopeRows& rows) const {
  return turned(x, rows.cos.unsqueeze(1).to(angle_type()), rows.sin.unsqueeze(1).to(angle_type()));
}

at::Tensor RopeTable::turned(const at::Tensor& x, const at::Tensor& cos,
                             const at::Tensor& sin) const {
  if (x.dim() == 3 && can_fuse(x) && x.scalar_type() == dtype_ && !rope_.interleaved) {
    return fused_rotate(x, cos, sin);
  }
  return rotate_leading(x, cos, sin, rope_.interleaved);
}

at::Tensor RopeTable::unrotate(const at::Tensor& x, const at::Tensor& positions) const {
  const Angles found =
      angles(rope_.depends_on_length() ? regime_of(length_of(positions)) : 0, positions);
  return unrotate(x,
                  RopeRows{found.cos.to(x.device()), found.sin.to(x.device()), rope_.interleaved});
}

at::Tensor RopeTable::unrotate(const at::Tensor& x, const RopeRows& rows) const {
  // The rotation is scaled by the attention factor a: its inverse is the opposite one over a, a^-2 times.
  const double scale = 1 / (rope_.attention_factor * rope_.attention_factor);
  return rotate_leading(x.to(at::kFloat), rows.cos.unsqueeze(1) * scale,
                        rows.sin.unsqueeze(1) * -scale, rope_.interleaved);
}

std::int64_t RopeTable::positions_of_table(std::int64_t num_positions) {
  constexpr std::int64_t kFirstPositions = 1024, kSpareShare = 8;
  return std::max(num_positions + num_positions / kSpareShare, kFirstPositions);
}

// The old table goes before the new one comes, whose angles are computed some positions at a time.
RopeRows RopeTable::rows_of_positions(std::int64_t num_positions) const {
  constexpr std::int64_t kPositionsAtOnce = 1024;
  const std::int64_t known = table_.cos.defined() ? table_.cos.size(0) : 0;
  if (num_positions > known) {
    const std::int64_t count = positions_of_table(num_positions);
    const std::int64_t num_pairs = inverse_frequencies(0).size(0);
    table_ = {};
    table_ = {lasting(count, num_pairs), lasting(count, num_pairs)};
    for (std::int64_t first = 0; first < count; first += kPositionsAtOnce) {
      const std::int64_t last = std::min(first + kPositionsAtOnce, count);
      const Angles some = angles(0, at::arange(first, last, at::kLong));
      table_.cos.slice(0, first, last).copy_(some.cos);
      table_.sin.slice(0, first, last).copy_(some.sin);
    }
  }
  return {table_.cos, table_.sin, rope_.interleaved};
}

void RopeTable::forget() const {
  for (Rows& rows : recent_) {
    rows = {};
  }
}

RopeTables::RopeTables(const ModelConfig& config, at::ScalarType dtype) {
  for (const RopeConfig& rope : config.ropes) {
    tables_.emplace_back(rope, dtype);
  }
  for (const LayerSpec& layer : config.layers) {
    table_of_layer_.push_back(layer.rope);
  }
}

bool RopeTables::depends_on_length(int layer) const {
  const int table = table_of_layer_[static_cast<std::size_t>(layer)];
  return table >= 0 && tables_[static_cast<std::size_t>(table)].depends_on_length();
}

at::Tensor RopeTables::rotate(int layer, const at::Tensor& x, const at::Tensor& positions,
                              std::int64_t length) const {
  const int table = table_of_layer_[static_cast<std::size_t>(layer)];
  return table < 0 ? x : tables_[static_cast<std::size_t>(table)].rotate(x, positions, length);
}

at::Tensor RopeTables::rotate(int layer, const at::Tensor& x, const RopeRows& rows) const {
  const int table = table_of_layer_[static_cast<std::size_t>(layer)];
  return table < 0 ? x : tables_[static_cast<std::size_t>(table)].rotate(x, rows);
}

at::Tensor RopeTables::unrotate(int layer, const at::Tensor& x, const at::Tensor& positions) const {
  const int table = table_of_layer_[static_cast<std::size_t>(layer)];
  return table < 0 ? x.to(at::kFloat)
                   : tables_[static_cast<std::size_t>(table)].unrotate(x, positions);
}

at::Tensor RopeTables::unrotate(int layer, const at::Tensor& x, const RopeRows& rows) const {
  const int table = table_of_layer_[static_cast<std::size_t>(layer)];
  return table < 0 ? x.to(at::kFloat) : tables_[static_cast<std::size_t>(table)].unrotate(x, rows);
}

RopeRows RopeTables::rows_of_positions(int layer, std::int64_t num_positions) const {
  const int table = table_of_layer_[static_cast<std::size_t>(layer)];
  return table < 0 ? RopeRows{}
                   : tables_[static_cast<std::size_t>(table)].rows_of_positions(num_positions);
}

void RopeTables::forget() const {
  for (const RopeTable& table : tables_) {
    table.forget();
  }
}

}  // namespace kvc
