#include "runtime/ops/coded_rows.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

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

}  // namespace

CodedRows::CodedRows(const PagedBlock& block)
    : spec_(block),
      k_(block.layout.num_coefficients()),
      encoder_(block.encoder, k_, block.channels()),
      mean_(block.mean, block.mean + block.channels()),
      steps_(block.steps, block.steps + k_) {
  for (int bits = kWidestCode; bits >= 1; --bits) {
    for (std::int64_t i = 0; i < spec_.layout.coefficients[bits]; ++i) {
      first_levels_.push_back(first_level(bits) * steps_[first_levels_.size()]);
    }
  }
  std::vector<float> decoder(block.decoder, block.decoder + block.channels() * k_);
  first_encoded_ = first_mean(decoder);
  const std::int64_t layer_channels = spec_.num_parts() * spec_.part_channels();
  for (std::int64_t row = 0; spec_.has_keys() && row < spec_.num_layers * spec_.num_heads; ++row) {
    const std::int64_t first =
        row / spec_.num_heads * layer_channels + row % spec_.num_heads * spec_.head_dim;
    keys_.emplace_back(spec_.layout, decoder.data() + first * k_, k_, spec_.head_dim, steps_.data(),
                       mean_.data() + first, spec_.bases);
    for (std::int64_t d = 0; d < spec_.head_dim; ++d) {  // as attention's kernels round them
      for (std::int64_t c = 0; c < k_; ++c) {
        decoder[at((first + d) * k_ + c)] = keys_.back().weight(d, c) / steps_[at(c)];
      }
    }
  }
  first_mean_ = first_mean(decoder);
  for (std::int64_t first = 0; first < spec_.channels(); first += spec_.head_dim) {
    decoders_.emplace_back(decoder.data() + first * k_, spec_.head_dim, k_);
  }
  spec_.bases.channels = nullptr;
  spec_.encoder = spec_.decoder = spec_.mean = spec_.steps = spec_.first = nullptr;
}

std::vector<float> CodedRows::first_mean(const std::vector<float>& decoder) const {
  std::vector<float> mean;
  for (std::int64_t channel = 0; spec_.first != nullptr && channel < spec_.channels(); ++channel) {
    const float* row = decoder.data() + channel * k_;
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
  encoder_.multiply(rows, count, z, k_);
}

void CodedRows::decode_part(std::int64_t first, std::int64_t count, const float* z,
                            float* rows) const {
  for (std::int64_t head = 0; head < spec_.num_heads; ++head) {
    decoders_[at(first / spec_.head_dim + head)].multiply(z, count, rows + head * spec_.head_dim,
                                                          spec_.part_channels());
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
  decoders_[at(first / spec_.head_dim)].multiply(z.data(), count, values, spec_.head_dim);
  for (std::int64_t i = 0; i < count; ++i, values += spec_.head_dim) {
    add_row(mean_.data() + first, spec_.head_dim, values);
    for (std::int64_t d = 0; first_weights != nullptr && d < spec_.head_dim; ++d) {
      values[d] += first_weights[i] * (first_mean_[at(first + d)] - mean_[at(first + d)]);
    }
  }
}

}  // namespace kvc
