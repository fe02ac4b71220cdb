#include "runtime/ops/device_factors.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/narrow.h"

namespace kvc {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// F times the steps of a channel. [k]
std::vector<float> decoder_row(const PagedBlock& block, std::int64_t channel) {
  const std::int64_t k = block.layout.num_coefficients();
  std::vector<float> row(block.decoder + channel * k, block.decoder + (channel + 1) * k);
  std::transform(row.begin(), row.end(), block.steps, row.begin(), std::multiplies());
  return row;
}

void add_row(const std::vector<float>& row, float mean, std::int64_t width, FactorRows& to) {
  float largest = 0;
  for (const float weight : row) {
    largest = std::max(largest, std::fabs(weight));
  }
  const float scale = largest > 0 ? largest : 1;
  for (const float weight : row) {
    to.rows.push_back(narrow_float16(weight / scale, Rounding::kNearest));
  }
  to.rows.resize(to.rows.size() + at(width) - row.size());
  to.scales.push_back(scale);
  to.means.push_back(mean);
}

CodedKeyRows key_rows(const HeadBlocks& keys, std::int64_t layer, std::int64_t head) {
  const PagedBlock& block = keys.of(head);
  const std::int64_t first = keys.channel(layer, head), k = block.layout.num_coefficients();
  return {block.layout, block.decoder + first * k, k,          block.head_dim,
          block.steps,  block.mean + first,        block.bases};
}

}  // namespace

int HeadBlocks::number_of(std::int64_t head) const {
  return numbers[at(head) * numbers.size() / at(num_kv_heads)];
}

const PagedBlock& HeadBlocks::of(std::int64_t head) const { return (*blocks)[at(number_of(head))]; }

std::int64_t HeadBlocks::channel(std::int64_t layer, std::int64_t head) const {
  const PagedBlock& block = of(head);
  const std::int64_t part = values && block.has_keys() ? 1 : 0;
  return ((layer * block.num_parts() + part) * block.num_heads + head - block.first_head) *
         block.head_dim;
}

FactorRows value_rows(const HeadBlocks& values, std::int64_t layer, std::int64_t width) {
  FactorRows rows;
  for (std::int64_t head = 0; head < values.num_kv_heads; ++head) {
    const PagedBlock& block = values.of(head);
    const std::int64_t first = values.channel(layer, head);
    for (std::int64_t channel = first; channel < first + block.head_dim; ++channel) {
      add_row(decoder_row(block, channel), block.mean[channel], width, rows);
    }
  }
  return rows;
}

// Channels of all first members of pairs, then of all second ones.
RebuiltKeyRows rebuilt_key_rows(const HeadBlocks& keys, std::int64_t layer, std::int64_t num_pairs,
                                std::int64_t width) {
  RebuiltKeyRows all;
  for (std::int64_t head = 0; head < keys.num_kv_heads; ++head) {
    const PagedBlock& block = keys.of(head);
    std::vector<ChannelPair> pairs = channel_pairs_of(block.head_dim, num_pairs);
    all.num_pairs = rebuilt_pairs(block.head_dim);
    pairs.resize(at(all.num_pairs), {-1, -1, -1});
    const std::int64_t first = keys.channel(layer, head);
    for (const bool second : {false, true}) {
      for (const ChannelPair& pair : pairs) {
        const std::int32_t channel = second ? pair.second : pair.first;
        all.channels.push_back(channel);
        if (channel < 0) {
          add_row({}, 0, width, all.rows);
        } else {
          add_row(decoder_row(block, first + channel), block.mean[first + channel], width,
                  all.rows);
        }
      }
    }
    for (const ChannelPair& pair : pairs) {
      all.angles.push_back(pair.angle);
    }
  }
  return all;
}

MetKeyRows met_key_rows(const HeadBlocks& keys, std::int64_t layer, std::int64_t num_pairs) {
  std::vector<CodedKeyRows> rows;
  for (std::int64_t head = 0; head < keys.num_kv_heads; ++head) {
    rows.push_back(key_rows(keys, layer, head));
  }
  std::vector<const CodedKeyRows*> heads;
  for (const CodedKeyRows& of_head : rows) {
    heads.push_back(&of_head);
  }
  const std::vector<ChannelPair> pairs = channel_pairs_of(keys.of(0).head_dim, num_pairs);
  return {code_pair_rows(heads, pairs), mean_pair_rows(heads, pairs)};
}

KeyForm key_form(const HeadBlocks& keys) { return key_rows(keys, 0, 0).form(); }

std::vector<float> first_mean(const PagedBlock& block) {
  std::vector<float> mean;
  for (std::int64_t channel = 0; channel < block.channels(); ++channel) {
    const std::vector<float> row = decoder_row(block, channel);
    mean.push_back(block.first[channel] - std::accumulate(row.begin(), row.end(), 0.0f) / 2);
  }
  return mean;
}

std::vector<float> encoder_columns(const PagedBlock& block) {
  const std::int64_t n = block.channels(), k = block.layout.num_coefficients();
  std::vector<float> columns(at(n * k));
  for (std::int64_t i = 0; i < n * k; ++i) {
    columns[at(i)] = block.encoder[i % k * n + i / k];
  }
  return columns;
}

std::vector<float> decoder_columns(const PagedBlock& block) {
  const std::int64_t n = block.channels(), k = block.layout.num_coefficients();
  std::vector<float> columns(at(n * k));
  for (std::int64_t i = 0; i < n * k; ++i) {
    columns[at(i)] = block.decoder[i % n * k + i / n] * block.steps[i / n];
  }
  return columns;
}

}  // namespace kvc
