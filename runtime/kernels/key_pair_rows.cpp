#include "runtime/kernels/key_pair_rows.h"

#include <algorithm>

namespace kvc {
namespace {

// number * (a, b) in two channels.
struct PairRow {
  ChannelPair pair;
  float a = 0, b = 0;
};
using PairRows = std::vector<PairRow>;

// By coefficient.
PairRows code_rows_of(const CodedKeyRows& keys, const std::vector<ChannelPair>& pairs) {
  PairRows rows;
  const auto set = [&](std::int32_t coefficient, const PairRow& row) {
    rows.resize(std::max(rows.size(), static_cast<std::size_t>(coefficient) + 1));
    rows[static_cast<std::size_t>(coefficient)] = row;
  };
  for (const CodedKeyRows::RotatedWeight& weight : keys.rotated()) {
    set(weight.coefficient, {{weight.channel, weight.channel, -1}, weight.weight, 0});
  }
  for (const CodedKeyRows::Pair& pair : keys.pairs()) {
    const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const ChannelPair& of) {
      return of.first == pair.channels[0] && of.second == pair.channels[1];
    });
    for (int i = 0; i < pair.count; ++i) {
      set(pair.coefficients[i], {*found, pair.weights[0][i], pair.weights[1][i]});
    }
  }
  return rows;
}

PairRows mean_rows_of(const CodedKeyRows& keys, const std::vector<ChannelPair>& pairs) {
  PairRows rows;
  for (const ChannelPair& pair : pairs) {
    const PairRow row{pair, keys.mean(pair.first), keys.mean(pair.second)};
    if (row.a != 0 || row.b != 0) {
      rows.push_back(row);
    }
  }
  return rows;
}

KeyPairRows lay_out(const std::vector<PairRows>& heads) {
  std::size_t count = 0;
  for (const PairRows& rows : heads) {
    count = std::max(count, rows.size());
  }
  KeyPairRows all{static_cast<std::int64_t>(heads.size()), static_cast<std::int64_t>(count),
                  std::vector<std::int32_t>(heads.size() * 2 * count),
                  std::vector<std::int32_t>(heads.size() * count, -1),
                  std::vector<float>(heads.size() * 2 * count)};
  for (std::size_t head = 0; head < heads.size(); ++head) {
    for (std::size_t i = 0; i < heads[head].size(); ++i) {
      const PairRow& row = heads[head][i];
      const std::size_t first = 2 * head * count + i, second = first + count;
      all.channels[first] = row.pair.first;
      all.channels[second] = row.pair.second;
      all.weights[first] = row.a;
      all.weights[second] = row.b;
      all.angles[head * count + i] = row.pair.angle;
    }
  }
  return all;
}

template <class RowsOf>
KeyPairRows lay_out(const std::vector<const CodedKeyRows*>& heads,
                    const std::vector<ChannelPair>& pairs, const RowsOf& rows_of) {
  std::vector<PairRows> rows;
  for (const CodedKeyRows* keys : heads) {
    rows.push_back(rows_of(*keys, pairs));
  }
  return lay_out(rows);
}

}  // namespace

std::vector<ChannelPair> channel_pairs_of(std::int64_t head_dim, std::int64_t num_pairs) {
  std::vector<ChannelPair> pairs;
  const auto turned = static_cast<std::int32_t>(num_pairs);
  const auto half = static_cast<std::int32_t>(head_dim / 2) - turned;
  for (std::int32_t i = 0; i < turned; ++i) {
    pairs.push_back({i, i + turned, i});
  }
  for (std::int32_t i = 2 * turned; i < 2 * turned + half; ++i) {
    pairs.push_back({i, i + half, -1});
  }
  return pairs;
}

KeyPairRows code_pair_rows(const std::vector<const CodedKeyRows*>& heads,
                           const std::vector<ChannelPair>& pairs) {
  return lay_out(heads, pairs, code_rows_of);
}

KeyPairRows mean_pair_rows(const std::vector<const CodedKeyRows*>& heads,
                           const std::vector<ChannelPair>& pairs) {
  return lay_out(heads, pairs, mean_rows_of);
}

}  // namespace kvc
