#include "runtime/kernels/coded_keys.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace kvc {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

KeyForm form_of(const KeyBases& bases, std::int64_t head_dim) {
  const bool pairs = bases.count > 1 && 2 * bases.count == head_dim;
  return bases.rotated ? KeyForm::kRotated : pairs ? KeyForm::kPairs : KeyForm::kBases;
}

// Coefficients that are not zero in all of some channels' rows of weights [head_dim, num_coefficients].
std::vector<std::int32_t> coefficients_of(const std::vector<float>& weights,
                                          std::int64_t num_coefficients,
                                          const std::int32_t* channels, std::int64_t count) {
  std::vector<std::int32_t> used;
  for (std::int64_t c = 0; c < num_coefficients; ++c) {
    if (std::any_of(channels, channels + count,
                    [&](std::int32_t d) { return weights[at(d * num_coefficients + c)] != 0; })) {
      used.push_back(static_cast<std::int32_t>(c));
    }
  }
  return used;
}

}  // namespace

CodedKeyRows::CodedKeyRows(const TileLayout& layout, const float* decoder, std::int64_t row_stride,
                           std::int64_t head_dim, const float* steps, const float* mean,
                           const KeyBases& bases)
    : form_(form_of(bases, head_dim)),
      offset_(at(head_dim), 0),
      mean_(mean, mean + head_dim),
      channels_(at(head_dim)),
      places_(at(head_dim)) {
  if (bases.channels == nullptr) {
    std::iota(channels_.begin(), channels_.end(), 0);
  } else {
    std::copy_n(bases.channels, head_dim, channels_.begin());
  }
  for (std::int64_t i = 0; i < head_dim; ++i) {
    places_[at(channels_[at(i)])] = i;
  }
  const std::int64_t count = layout.num_coefficients();
  std::vector<float> weights;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    std::transform(steps, steps + count, decoder + d * row_stride, std::back_inserter(weights),
                   [](float step, float of) { return step * of; });
  }
  const std::int64_t of_basis = head_dim / bases.count;
  for (std::int64_t basis = 0; basis < bases.count; ++basis) {
    set_basis(layout, weights, count, channels_.data() + basis * of_basis, of_basis);
  }
  std::sort(rotated_.begin(), rotated_.end(), [](const RotatedWeight& a, const RotatedWeight& b) {
    return a.coefficient < b.coefficient;
  });
  std::int64_t c = 0;
  for (int bits = kWidestCode; bits >= 1; --bits) {
    for (const std::int64_t end = c + layout.coefficients[bits]; c < end; ++c) {
      for (std::int64_t d = 0; form_ != KeyForm::kBases && d < head_dim; ++d) {
        offset_[at(d)] += first_level(bits) * weights[at(d * count + c)];
      }
    }
  }
}

void CodedKeyRows::set_basis(const TileLayout& layout, const std::vector<float>& weights,
                             std::int64_t num_coefficients, const std::int32_t* channels,
                             std::int64_t count) {
  const std::vector<std::int32_t> used =
      coefficients_of(weights, num_coefficients, channels, count);
  const auto weight = [&](std::int64_t d, std::int32_t c) {
    return weights[at(d * num_coefficients + c)];
  };
  if (form_ == KeyForm::kBases) {
    std::vector<float> rows;
    for (std::int64_t i = 0; i < count; ++i) {
      std::transform(used.begin(), used.end(), std::back_inserter(rows),
                     [&](std::int32_t c) { return weight(channels[i], c); });
    }
    bases_.emplace_back(layout, used, rows.data(), count);
    for (std::int64_t i = 0; i < count; ++i) {
      offset_[at(channels[i])] = bases_.back().offset(i);
    }
  } else if (form_ == KeyForm::kPairs) {
    Pair pair{.channels = {std::min(channels[0], channels[1]), std::max(channels[0], channels[1])}};
    for (const std::int32_t c : used) {
      pair.coefficients[pair.count] = c;
      for (int i = 0; i < 2; ++i) {
        pair.weights[i][pair.count] = weight(pair.channels[i], c);
      }
      ++pair.count;
    }
    pairs_.push_back(pair);
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      for (const std::int32_t c : used) {
        if (weight(channels[i], c) != 0) {
          rotated_.push_back({c, channels[i], weight(channels[i], c)});
        }
      }
    }
  }
}

float CodedKeyRows::weight(std::int64_t channel, std::int64_t coefficient) const {
  const std::int64_t place = places_[at(channel)];
  if (form_ == KeyForm::kPairs) {
    const Pair& pair = pairs_[at(place / 2)];
    const auto* end = pair.coefficients + pair.count;
    const auto* found = std::find(pair.coefficients, end, coefficient);
    return found == end ? 0 : pair.weights[channel == pair.channels[1]][found - pair.coefficients];
  }
  if (form_ == KeyForm::kRotated) {
    const auto found = std::lower_bound(
        rotated_.begin(), rotated_.end(), coefficient,
        [](const RotatedWeight& of, std::int64_t c) { return of.coefficient < c; });
    const bool has = found != rotated_.end() && found->coefficient == coefficient;
    return has && found->channel == channel ? found->weight : 0;
  }
  const IntegerRows& rows = bases_[at(place / bases_[0].num_rows())];
  const std::int64_t row = place % rows.num_rows();
  return rows.scale(row) * static_cast<float>(rows.integer(row, coefficient));
}

std::int64_t CodedKeyRows::bytes() const {
  std::int64_t bytes =
      4 * static_cast<std::int64_t>(offset_.size() + mean_.size() + channels_.size()) +
      static_cast<std::int64_t>(pairs_.size() * sizeof(Pair) +
                                rotated_.size() * sizeof(RotatedWeight));
  for (const IntegerRows& rows : bases_) {
    bytes += rows.bytes();
  }
  return bytes;
}

}  // namespace kvc
