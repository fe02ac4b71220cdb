#include "runtime/ops/coded_rows.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

#include "runtime/kernels/float_rows.h"

namespace kvc {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

void add_rows(const float* to_all, std::int64_t width, std::int64_t count, float* rows) {
  for (std::int64_t i = 0; i < count; ++i, rows += width) {
    std::transform(rows, rows + width, to_all, rows, std::plus());
  }
}

}  // namespace

void turn_rows(const RopeAngles& rope, Turn turn, const std::int64_t* positions, std::int64_t count,
               std::int64_t head_dim, float* rows) {
  const std::int64_t step = rope.interleaved ? 2 : 1, apart = rope.interleaved ? 1 : rope.num_pairs;
  for (std::int64_t i = 0; i < count; ++i, rows += head_dim) {
    const float* cos = rope.cos + positions[i] * rope.num_pairs;
    const float* sin = rope.sin + positions[i] * rope.num_pairs;
    for (std::int64_t pair = 0; pair < rope.num_pairs; ++pair) {
      float &first = rows[pair * step], &second = rows[pair * step + apart];
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
}

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
  spec_.encoder = spec_.decoder = spec_.mean = spec_.steps = nullptr;
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

std::int64_t CodedRows::first_channel(std::int64_t layer, bool values) const {
  return (layer * spec_.num_parts() + (values && spec_.has_keys() ? 1 : 0)) * spec_.part_channels();
}

void CodedRows::encode(const RopeAngles& rope, const std::int64_t* positions, std::int64_t count,
                       float* rows, float* z) const {
  const std::int64_t n = spec_.channels(), head_dim = spec_.head_dim;
  std::vector<float> mean(mean_);
  for (std::int64_t i = 0; i < count; ++i) {
    float* row = rows + i * n;
    for (std::int64_t layer = 0; spec_.has_keys() && layer < spec_.num_layers; ++layer) {
      for (std::int64_t head = 0; head < spec_.num_heads; ++head) {
        const std::int64_t first = first_channel(layer, false) + head * head_dim;
        if (spec_.bases.rotated) {
          std::copy_n(mean_.data() + first, head_dim, mean.data() + first);
          turn_rows(rope, Turn::kForwards, positions + i, 1, head_dim, mean.data() + first);
        } else {
          turn_rows(rope, Turn::kBackwards, positions + i, 1, head_dim, row + first);
        }
      }
    }
    std::transform(row, row + n, mean.begin(), row, std::minus());
  }
  if (bases_.size() == 1) {
    return multiply_rows({bases_[0].encoder.data(), k_, n}, rows, count, z, k_);
  }
  std::vector<float> some(at(count * n)), of_basis(at(count * k_));
  for (const Basis& basis : bases_) {
    const std::size_t width = basis.channels.size(), number = basis.coefficients.size();
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        some[at(i) * width + j] = rows[i * n + basis.channels[j]];
      }
    }
    multiply_rows(
        {basis.encoder.data(), static_cast<std::int64_t>(number), static_cast<std::int64_t>(width)},
        some.data(), count, of_basis.data(), static_cast<std::int64_t>(number));
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < number; ++j) {
        z[i * k_ + basis.coefficients[j]] = of_basis[at(i) * number + j];
      }
    }
  }
}

void CodedRows::decode_part(std::int64_t first, std::int64_t count, const float* z,
                            float* rows) const {
  const std::int64_t width = spec_.part_channels();
  if (bases_.size() == 1) {
    return multiply_rows({decoder_.data() + first * k_, width, k_}, z, count, rows, width);
  }
  std::vector<float> some(at(count * k_)), of_basis(at(count * width));
  for (const Basis& basis : bases_) {
    const std::size_t channels = basis.channels.size(), number = basis.coefficients.size();
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < number; ++j) {
        some[at(i) * number + j] = z[i * k_ + basis.coefficients[j]];
      }
    }
    multiply_rows({basis.decoder.data(), static_cast<std::int64_t>(channels),
                   static_cast<std::int64_t>(number)},
                  some.data(), count, of_basis.data(), static_cast<std::int64_t>(channels));
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < channels; ++j) {
        rows[i * width + basis.channels[j]] = of_basis[at(i) * channels + j];
      }
    }
  }
}

void CodedRows::decode_keys(const RopeAngles& rope, std::int64_t layer,
                            const std::int64_t* positions, std::int64_t count, const float* z,
                            float* rows) const {
  const std::int64_t first = first_channel(layer, false), width = spec_.part_channels();
  const std::int64_t head_dim = spec_.head_dim;
  decode_part(first, count, z, rows);
  std::vector<float> mean(mean_.begin() + first, mean_.begin() + first + width);
  for (std::int64_t i = 0; i < count; ++i) {
    float* row = rows + i * width;
    if (spec_.bases.rotated) {
      std::copy_n(mean_.data() + first, width, mean.data());
      turn_rows(rope, Turn::kForwards, positions + i, 1, head_dim, mean.data());
    }
    std::transform(row, row + width, mean.begin(), row, std::plus());
    for (std::int64_t head = 0; !spec_.bases.rotated && head < spec_.num_heads; ++head) {
      turn_rows(rope, Turn::kForwards, positions + i, 1, head_dim, row + head * head_dim);
    }
  }
}

void CodedRows::decode_values(std::int64_t layer, std::int64_t count, const float* z,
                              float* rows) const {
  const std::int64_t first = first_channel(layer, true);
  decode_part(first, count, z, rows);
  add_rows(mean_.data() + first, spec_.part_channels(), count, rows);
}

void CodedRows::decode_sums(std::int64_t layer, std::int64_t head, std::int64_t count,
                            const float* sums, float* values) const {
  std::vector<float> z(at(count * k_));
  for (std::int64_t i = 0; i < count; ++i, sums += k_ + 1) {
    for (std::int64_t c = 0; c < k_; ++c) {
      z[at(i * k_ + c)] = sums[c] * steps_[at(c)] + sums[k_] * first_levels_[at(c)];
    }
  }
  const std::int64_t first = first_channel(layer, true) + head * spec_.head_dim;
  multiply_rows({decoder_.data() + first * k_, spec_.head_dim, k_}, z.data(), count, values,
                spec_.head_dim);
  add_rows(mean_.data() + first, spec_.head_dim, count, values);
}

}  // namespace kvc
