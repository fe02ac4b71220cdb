#include "runtime/ops/coded_rows.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

#include "runtime/kernels/float_rows.h"

namespace kvc {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

void add_row(const float* from, std::int64_t width, float* row) {
  std::transform(row, row + width, from, row, std::plus());
}

// Turns a key by RoPE, in place. row [2 rope.num_pairs or more], at `position`
enum class Turn { kForwards, kBackwards };
void turn_row(const RopeAngles& rope, Turn turn, std::int64_t position, float* row) {
  const float* cos = rope.cos + position * rope.num_pairs;
  const float* sin = rope.sin + position * rope.num_pairs;
  for (std::int64_t pair = 0; pair < rope.num_pairs; ++pair) {
    float &first = row[pair], &second = row[pair + rope.num_pairs];
    const float a = first, b = second, c = cos[pair], s = sin[pair];
    if (turn == Turn::kForwards) {
      first = a * c - b * s;
      second = b * c + a * s;
    } else {  // the inverse, whatever factor cos and sin have
      const float factor = 1 / (c * c + s * s);
      first = (a * c + b * s) * factor;
      second = (b * c - a * s) * factor;
    }
  }
}

// Some of the columns of `count` rows of `width` numbers.
struct Columns {
  const std::vector<std::int32_t>& indices;
  std::int64_t width;

  std::int64_t size() const { return static_cast<std::int64_t>(indices.size()); }
};
struct Scratch {
  std::vector<float> from, to;
};
// Columns `from` of x, multiplied with rows [to.size(), from.size()], become columns `to` of `out`.
void multiply_columns(const std::vector<float>& rows, const Columns& from, const float* x,
                      const Columns& to, float* out, std::int64_t count, Scratch& scratch) {
  scratch.from.resize(at(count * from.size()));
  scratch.to.resize(at(count * to.size()));
  auto* gathered = scratch.from.data();
  for (std::int64_t i = 0; i < count; ++i) {
    for (const std::int32_t column : from.indices) {
      *gathered++ = x[i * from.width + column];
    }
  }
  multiply_rows({rows.data(), to.size(), from.size()}, scratch.from.data(), count,
                scratch.to.data(), to.size());
  const auto* products = scratch.to.data();
  for (std::int64_t i = 0; i < count; ++i) {
    for (const std::int32_t column : to.indices) {
      out[i * to.width + column] = *products++;
    }
  }
}

}  // namespace

CodedRows::CodedRows(const PagedBlock& block)
    : spec_(block),
      k_(block.layout.num_coefficients()),
      channels_(at(block.channels())),
      decoder_(block.decoder, block.decoder + block.channels() * k_),
      mean_(block.mean, block.mean + block.channels()),
      steps_(block.steps, block.steps + k_) {
  for (int bits = kWidestCode; bits >= 1; --bits) {
    for (std::int64_t i = 0; i < spec_.layout.coefficients[bits]; ++i) {
      first_levels_.push_back(first_level(bits) * steps_[first_levels_.size()]);
    }
  }
  first_encoded_ = first_mean();
  std::iota(channels_.begin(), channels_.end(), 0);
  if (spec_.bases.count > 1) {
    std::copy_n(spec_.bases.channels, spec_.channels(), channels_.begin());
  }
  const std::int64_t of_basis = spec_.channels() / spec_.bases.count;
  for (std::int64_t basis = 0; basis < spec_.bases.count; ++basis) {
    add_basis(channels_.data() + basis * of_basis, of_basis);
  }
  const std::int64_t layer_channels = spec_.num_parts() * spec_.part_channels();
  for (std::int64_t row = 0; spec_.has_keys() && row < spec_.num_layers * spec_.num_heads; ++row) {
    const std::int64_t first =
        row / spec_.num_heads * layer_channels + row % spec_.num_heads * spec_.head_dim;
    keys_.emplace_back(spec_.layout, decoder_.data() + first * k_, k_, spec_.head_dim,
                       steps_.data(), mean_.data() + first, spec_.bases);
    for (std::int64_t d = 0; d < spec_.head_dim; ++d) {  // as attention's kernels round them
      for (std::int64_t c = 0; c < k_; ++c) {
        decoder_[at((first + d) * k_ + c)] = keys_.back().weight(d, c) / steps_[at(c)];
      }
    }
  }
  first_mean_ = first_mean();
  for (Basis& basis : bases_) {
    for (std::size_t i = 0; bases_.size() > 1 && i < basis.channels.size(); ++i) {
      for (const std::int32_t c : basis.coefficients) {
        basis.decoder.push_back(decoder_[at(basis.channels[i] * k_ + c)]);
      }
    }
  }
  if (bases_.size() > 1) {
    decoder_ = {};
  }
  spec_.bases.channels = nullptr;
  spec_.encoder = spec_.decoder = spec_.mean = spec_.steps = spec_.first = nullptr;
}

void CodedRows::add_basis(const std::int32_t* channels, std::int64_t count) {
  Basis& basis = bases_.emplace_back();
  basis.channels.assign(channels, channels + count);
  const std::int64_t n = spec_.channels();
  for (std::int32_t c = 0; c < k_; ++c) {
    const float* row = spec_.encoder + c * n;
    if (spec_.bases.count == 1 ||
        std::any_of(channels, channels + count, [&](std::int32_t d) { return row[d] != 0; })) {
      basis.coefficients.push_back(c);
      std::transform(channels, channels + count, std::back_inserter(basis.encoder),
                     [&](std::int32_t d) { return row[d]; });
    }
  }
}

std::vector<float> CodedRows::first_mean() const {
  std::vector<float> mean;
  for (std::int64_t channel = 0; spec_.first != nullptr && channel < spec_.channels(); ++channel) {
    const float* row = decoder_.data() + channel * k_;
    mean.push_back(spec_.first[channel] -
                   std::inner_product(steps_.begin(), steps_.end(), row, 0.0f) / 2);
  }
  return mean;
}

std::int64_t CodedRows::first_channel(std::int64_t layer, bool values) const {
  return (layer * spec_.num_parts() + (values && spec_.has_keys() ? 1 : 0)) * spec_.part_channels();
}

void CodedRows::turned_mean(const RopeAngles& rope, std::int64_t position,
                            const std::vector<float>& first, float* mean) const {
  const std::vector<float>& from = position == 0 && has_first() ? first : mean_;
  std::copy(from.begin(), from.end(), mean);
  if (spec_.bases.rotated) {
    turn_row(rope, Turn::kForwards, position, mean);
  }
}

std::vector<float> CodedRows::first_keys(const RopeAngles& rope, std::int64_t layer) const {
  const std::int64_t first = first_channel(layer, false);
  std::vector<float> keys(at(spec_.part_channels()));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool turns = static_cast<std::int64_t>(i) % spec_.head_dim < 2 * rope.num_pairs;
    keys[i] = (first_mean_[at(first) + i] - mean_[at(first) + i]) * (turns ? rope.cos[0] : 1);
  }
  return keys;
}

void CodedRows::encode(const RopeAngles& rope, const std::int64_t* positions, std::int64_t count,
                       float* rows, float* z) const {
  const std::int64_t n = spec_.channels();
  std::vector<float> mean(at(n));
  for (std::int64_t i = 0; i < count; ++i) {
    float* row = rows + i * n;
    const bool turns = spec_.has_keys() && !spec_.bases.rotated;
    for (std::int64_t layer = 0; turns && layer < spec_.num_layers; ++layer) {
      for (std::int64_t head = 0; head < spec_.num_heads; ++head) {
        turn_row(rope, Turn::kBackwards, positions[i],
                 row + first_channel(layer, false) + head * spec_.head_dim);
      }
    }
    turned_mean(rope, positions[i], first_encoded_, mean.data());
    std::transform(row, row + n, mean.begin(), row, std::minus());
  }
  if (bases_.size() == 1) {
    return multiply_rows({bases_[0].encoder.data(), k_, n}, rows, count, z, k_);
  }
  Scratch scratch;
  for (const Basis& basis : bases_) {
    multiply_columns(basis.encoder, {basis.channels, n}, rows, {basis.coefficients, k_}, z, count,
                     scratch);
  }
}

void CodedRows::decode_part(std::int64_t first, std::int64_t count, const float* z,
                            float* rows) const {
  const std::int64_t width = spec_.part_channels();
  if (bases_.size() == 1) {
    return multiply_rows({decoder_.data() + first * k_, width, k_}, z, count, rows, width);
  }
  Scratch scratch;
  for (const Basis& basis : bases_) {
    multiply_columns(basis.decoder, {basis.coefficients, k_}, z, {basis.channels, width}, rows,
                     count, scratch);
  }
}

void CodedRows::decode_keys(const RopeAngles& rope, std::int64_t layer,
                            const std::int64_t* positions, std::int64_t count, const float* z,
                            float* rows) const {
  const std::int64_t first = first_channel(layer, false), width = spec_.part_channels();
  decode_part(first, count, z, rows);
  std::vector<float> mean(at(spec_.channels()));
  for (std::int64_t i = 0; i < count; ++i) {
    float* row = rows + i * width;
    turned_mean(rope, positions[i], first_mean_, mean.data());
    add_row(mean.data() + first, width, row);
    for (std::int64_t head = 0; !spec_.bases.rotated && head < spec_.num_heads; ++head) {
      turn_row(rope, Turn::kForwards, positions[i], row + head * spec_.head_dim);
    }
  }
}

void CodedRows::decode_values(std::int64_t layer, const std::int64_t* positions, std::int64_t count,
                              const float* z, float* rows) const {
  const std::int64_t first = first_channel(layer, true), width = spec_.part_channels();
  decode_part(first, count, z, rows);
  for (std::int64_t i = 0; i < count; ++i) {
    const bool is_first = positions[i] == 0 && has_first();
    add_row((is_first ? first_mean_ : mean_).data() + first, width, rows + i * width);
  }
}

void CodedRows::decode_sums(std::int64_t layer, std::int64_t head, std::int64_t count,
                            const float* sums, const float* first_weights, float* values) const {
  std::vector<float> z(at(count * k_));
  for (std::int64_t i = 0; i < count; ++i, sums += k_ + 1) {
    for (std::int64_t c = 0; c < k_; ++c) {
      z[at(i * k_ + c)] = sums[c] * steps_[at(c)] + sums[k_] * first_levels_[at(c)];
    }
  }
  const std::int64_t first = first_channel(layer, true) + head * spec_.head_dim;
  multiply_rows({decoder_.data() + first * k_, spec_.head_dim, k_}, z.data(), count, values,
                spec_.head_dim);
  for (std::int64_t i = 0; i < count; ++i, values += spec_.head_dim) {
    add_row(mean_.data() + first, spec_.head_dim, values);
    for (std::int64_t d = 0; first_weights != nullptr && d < spec_.head_dim; ++d) {
      values[d] += first_weights[i] * (first_mean_[at(first + d)] - mean_[at(first + d)]);
    }
  }
}

}  // namespace kvc
