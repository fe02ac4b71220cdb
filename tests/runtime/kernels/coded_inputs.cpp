#include "tests/runtime/kernels/coded_inputs.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace kvc::testing {
namespace {

constexpr std::int64_t kTiles = 11, kBlockTiles = 2, kPosition = 40;

bool shares_tiles(const CodedForm& form) {
  return form.num_bases == 0 && !form.pairs && !form.rotated;
}

// All channels, those of a rotary pair one after the other.
std::vector<std::int32_t> by_pairs(const RopeAngles& rope, std::int64_t head_dim) {
  std::vector<std::int32_t> channels;
  for (std::int32_t pair = 0; pair < rope.num_pairs; ++pair) {
    const auto second = static_cast<std::int32_t>(rope.num_pairs);
    channels.push_back(rope.interleaved ? 2 * pair : pair);
    channels.push_back(rope.interleaved ? 2 * pair + 1 : pair + second);
  }
  for (auto d = static_cast<std::int32_t>(2 * rope.num_pairs); d < head_dim; ++d) {
    channels.push_back(d);
  }
  return channels;
}

}  // namespace

TileLayout layout_of(const std::vector<std::int64_t>& from_width_one, bool gain) {
  TileLayout layout{.coefficients = {}, .gain = gain};
  std::copy(from_width_one.begin(), from_width_one.end(), layout.coefficients + 1);
  return layout;
}

StoredTiles::StoredTiles(const TileLayout& layout, std::int64_t num_tiles, unsigned seed)
    : memory_(static_cast<std::size_t>((num_tiles + 1) * layout.bytes())) {
  std::mt19937 random(seed);
  for (std::uint8_t& byte : memory_) {
    byte = static_cast<std::uint8_t>(random());
  }
  for (std::int64_t tile = 0; layout.gain && tile <= num_tiles; ++tile) {
    for (std::int64_t token = 0; token < kTileTokens; ++token) {
      memory_[static_cast<std::size_t>(tile * layout.bytes() + layout.code_bytes() + token)] =
          static_cast<std::uint8_t>(random() % kNumGains);
    }
  }
  for (std::int64_t tile = 0; tile < num_tiles; tile += kBlockTiles) {
    blocks_.push_back(memory_.data() + tile * layout.bytes());
  }
  tiles_ = {blocks_.data(), kBlockTiles, num_tiles, layout};
}

CodedInputs::CodedInputs(const CodedForm& form, const TileLayout& keys, std::int64_t num_kv_heads,
                         std::int64_t head_dim)
    : keys_(keys, kTiles, 1),
      values_(layout_of(form.values, form.value_gain), kTiles, 2),
      angles_(kPosition + kTiles * kTileTokens,
              form.rotary == 1 ? head_dim / 8 : form.rotary * head_dim / 8, form.interleaved, 1.3) {
  for (std::int64_t head = 0; head < num_kv_heads; ++head) {
    add_rows(form, head, num_kv_heads, head_dim);
  }
  segment_ = {.keys = keys_.tiles(),
              .values = shares_tiles(form) ? keys_.tiles() : values_.tiles(),
              .rows = rows_.data(),
              .first_position = kPosition};
}

void CodedInputs::add_rows(const CodedForm& form, std::int64_t head, std::int64_t num_kv_heads,
                           std::int64_t head_dim) {
  const TileLayout& layout = keys_.tiles().layout;
  const std::int64_t count = layout.num_coefficients();
  const auto seed = static_cast<unsigned>(head) + 2;
  std::vector<float> decoder = random_numbers(count * head_dim, seed);
  std::vector<float> mean = random_numbers(head_dim, seed + 50);
  const std::vector<float> steps(static_cast<std::size_t>(count), 0.5f);
  const std::vector<std::int32_t> channels = by_pairs(angles_.rope, head_dim);
  KeyBases bases{.count = form.pairs ? head_dim / 2 : std::max<std::int64_t>(1, form.num_bases),
                 .rotated = form.rotated,
                 .channels = form.pairs || form.num_bases > 1 ? channels.data() : nullptr};
  // Coefficients have a place in a shuffled order: of channels for rotated ones.
  std::vector<std::int64_t> places(static_cast<std::size_t>(std::max(count, head_dim)));
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), std::mt19937(seed));
  for (std::int64_t c = 0; c < count; ++c) {
    const std::int64_t place = places[static_cast<std::size_t>(c)];
    // Each of several KV heads has some coefficients.
    const bool of_head = shares_tiles(form) || c % 3 == 2 || c % num_kv_heads == head;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      const std::int64_t basis = i / (head_dim / bases.count);
      const bool has = form.rotated ? i == place : basis == place % bases.count;
      const std::int64_t d = channels[static_cast<std::size_t>(i)];
      decoder[static_cast<std::size_t>(d * count + c)] *= of_head && has ? 0.02f : 0;
    }
  }
  for (std::int64_t i = 0; form.rotated && !form.with_means && i < head_dim; ++i) {
    const bool has = i / 2 % 5 == 2 || i >= head_dim - 3;
    mean[static_cast<std::size_t>(channels[static_cast<std::size_t>(i)])] *= has ? 1 : 0;
  }
  rows_.emplace_back(layout, decoder.data(), count, head_dim, steps.data(), mean.data(), bases);
}

CodedSegment CodedInputs::scattered() {
  for (std::int64_t token = 0; token < kTiles * kTileTokens; ++token) {
    positions_.push_back(static_cast<std::int32_t>(token * 37 % (kPosition + 150)));
  }
  CodedSegment segment = segment_;
  segment.positions = positions_.data();
  return segment;
}

}  // namespace kvc::testing
