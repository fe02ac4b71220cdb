#include "runtime/gpu/key_places.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "runtime/kernels/cuda/attention_rank.h"

namespace kvc {
namespace {

// Channels of a head that turn together, or beside each other; angle -1: not turned.
struct Pair {
  std::int64_t first = -1, second = -1, angle = -1;
};
using HeadPairs = std::vector<Pair>;

// What turns together, then the others.
HeadPairs pairs_of(std::int64_t head_dim, const RopeRows& rope) {
  const std::int64_t turned = rope.cos.defined() ? rope.cos.size(1) : 0;
  HeadPairs pairs;
  for (std::int64_t pair = 0; pair < head_dim / 2; ++pair) {
    const bool turns = pair < turned, beside = !turns || rope.interleaved;
    pairs.push_back(
        {beside ? 2 * pair : pair, beside ? 2 * pair + 1 : pair + turned, turns ? pair : -1});
  }
  return pairs;
}

PairPlaces to_places(std::vector<HeadPairs> heads, std::int64_t num_pairs) {
  std::vector<std::int64_t> channels, angles;
  for (HeadPairs& pairs : heads) {
    pairs.resize(static_cast<std::size_t>(num_pairs));
    for (const Pair& pair : pairs) {
      channels.push_back(pair.first);
      angles.push_back(pair.angle);
    }
    for (const Pair& pair : pairs) {
      channels.push_back(pair.second);
    }
  }
  const auto num_heads = static_cast<std::int64_t>(heads.size());
  return {at::tensor(channels, at::kLong).view({num_heads, 2 * num_pairs}),
          at::tensor(angles, at::kLong).view({num_heads, num_pairs})};
}

// Pairs of each head of which the latent holds both channels, in the order of its columns.
class StoredPairs {
 public:
  StoredPairs(const ModelConfig& config, const HeadPairs& pairs, const KeptChannels& kept)
      : head_dim_(config.head_dim), columns_(static_cast<std::size_t>(config.kv_dim()), -1) {
    for (std::int64_t i = 0; i < kept.channels.size(0); ++i) {
      columns_[static_cast<std::size_t>(kept.channels[i].item<std::int64_t>())] =
          kept.numbers[i].item<std::int64_t>();
    }
    for (std::int64_t head = 0; head < config.num_kv_heads; ++head) {
      HeadPairs& stored = heads.emplace_back();
      HeadPairs& others = rebuilt.emplace_back();
      for (const Pair& pair : pairs) {
        const bool is_stored = column(head, pair.first) >= 0 && column(head, pair.second) >= 0;
        (is_stored ? stored : others).push_back(pair);
      }
      std::sort(stored.begin(), stored.end(), [&](const Pair& a, const Pair& b) {
        return column(head, a.first) < column(head, b.first);
      });
    }
  }

  // True if every head has as many, in neighbouring columns: first channels, then second ones.
  bool are_regular() const {
    const auto count = static_cast<std::int64_t>(heads.front().size());
    for (std::size_t head = 0; head < heads.size(); ++head) {
      if (static_cast<std::int64_t>(heads[head].size()) != count) {
        return false;
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const Pair& pair = heads[head][static_cast<std::size_t>(i)];
        const std::int64_t at = first_column(head) + i;
        if (column(static_cast<std::int64_t>(head), pair.first) != at ||
            column(static_cast<std::int64_t>(head), pair.second) != at + count) {
          return false;
        }
      }
    }
    return count > 0;
  }
  std::int64_t first_column(std::size_t head) const {
    return column(static_cast<std::int64_t>(head), heads[head].front().first);
  }

  std::vector<HeadPairs> heads, rebuilt;

 private:
  std::int64_t column(std::int64_t head, std::int64_t channel) const {
    return columns_[static_cast<std::size_t>(head * head_dim_ + channel)];
  }

  std::int64_t head_dim_;
  std::vector<std::int64_t> columns_;  // of the latent, by channel; -1: rebuilt
};

}  // namespace

std::int64_t rank_pairs(std::int64_t head_dim) {
  const int pairs = rebuilt_pairs(head_dim);
  return pairs > 0 ? pairs : head_dim / 2;
}

KeyPlaces key_places(const ModelConfig& config, const RopeTables& rope, int layer,
                     const KeptChannels& kept) {
  constexpr std::int64_t kStoredStep = 8;  // pairs that a warp reads together
  const HeadPairs pairs = pairs_of(config.head_dim, rope.rows_of_positions(layer, 1));
  const std::int64_t all = rank_pairs(config.head_dim);
  KeyPlaces places;
  if (kept.channels.defined()) {
    const StoredPairs stored(config, pairs, kept);
    const auto count = static_cast<std::int64_t>(stored.heads.front().size());
    const std::int64_t others = rank_pairs(config.head_dim - 2 * count);
    if (stored.are_regular() && others < all) {
      std::vector<std::int64_t> columns;
      for (std::size_t head = 0; head < stored.heads.size(); ++head) {
        columns.push_back(stored.first_column(head));
      }
      places.rebuilt = to_places(stored.rebuilt, others);
      places.stored = to_places(stored.heads, round_up(count, kStoredStep));
      places.num_stored = count;
      places.first_columns = at::tensor(columns, at::kLong);
      return places;
    }
  }
  places.rebuilt =
      to_places(std::vector<HeadPairs>(static_cast<std::size_t>(config.num_kv_heads), pairs), all);
  return places;
}

}  // namespace kvc
