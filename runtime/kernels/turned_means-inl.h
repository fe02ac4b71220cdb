// Products of queries with means of keys, which turn with the tokens' positions.
#if defined(KVC_RUNTIME_KERNELS_TURNED_MEANS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVC_RUNTIME_KERNELS_TURNED_MEANS_INL_H_
#undef KVC_RUNTIME_KERNELS_TURNED_MEANS_INL_H_
#else
#define KVC_RUNTIME_KERNELS_TURNED_MEANS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "runtime/kernels/aligned_vector.h"
#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/tile_products-inl.h"
#include "runtime/kernels/tile_rope-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

// Tokens of a tile that are as far from its middle, 1/2 to 31/2 tokens, share the even part of a sum over pairs, and the
// odd one but for its sign.
inline constexpr std::int64_t kHalfTile = kTileTokens / 2;

// Parts of slowly turning pairs are known at all distances from their values at some: the polynomial through these is
// off by less than 2e-7 of a pair's product where a token turns it by 1/16 or less.
inline constexpr std::int64_t kNodes = 4;
inline constexpr std::array<std::int64_t, kNodes> kNodeHalves = {3, 8, 13,
                                                                 15};  // distances less 1/2
inline constexpr float kSlowTurn = 1.0f / 16;

// What each node's even part adds to that of every distance, and then each odd one. [2, kNodes, kHalfTile]
constexpr std::array<float, 2 * kNodes * kHalfTile> node_weights() {
  std::array<float, 2 * kNodes * kHalfTile> weights{};
  std::array<double, 2 * kNodes> nodes{};  // to both sides of the middle
  for (std::size_t node = 0; node < kNodes; ++node) {
    nodes[node] = static_cast<double>(kNodeHalves[node]) + 0.5;
    nodes[node + kNodes] = -nodes[node];
  }
  for (std::size_t i = 0; i < kHalfTile; ++i) {
    const double distance = static_cast<double>(i) + 0.5;
    std::array<double, 2 * kNodes> of_node{};
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      of_node[node] = 1;
      for (std::size_t other = 0; other < nodes.size(); ++other) {
        if (other != node) {
          of_node[node] *= (distance - nodes[other]) / (nodes[node] - nodes[other]);
        }
      }
    }
    for (std::size_t node = 0; node < kNodes; ++node) {
      const double near = of_node[node], far = of_node[node + kNodes];
      weights[node * kHalfTile + i] = static_cast<float>(near + far);
      weights[(kNodes + node) * kHalfTile + i] = static_cast<float>(near - far);
    }
  }
  return weights;
}

struct Turn {
  float cos, sin;
};
HWY_INLINE Turn operator*(const Turn& a, const Turn& b) {
  return {a.cos * b.cos - a.sin * b.sin, a.sin * b.cos + a.cos * b.sin};
}
// Half of a turn of less than a half circle.
HWY_INLINE Turn half_of(const Turn& turn) {
  const float cos = std::sqrt(std::max(0.0f, (1 + turn.cos) / 2));
  const float sin = std::sqrt(std::max(0.0f, (1 - turn.cos) / 2));
  return {cos, cos > 0.1f ? turn.sin / (2 * cos) : std::copysign(sin, turn.sin)};
}

// A pair with the query (a, b) and the mean (x, y) adds cos (a x + b y) + sin (b x - a y) to a score, the
// angle being the position's. The two products are turned back to the middle of a tile as a query is, or where tokens
// have positions of their own, are not turned.
class TurnedMeans {
 public:
  TurnedMeans(const DecodeAttentionParams& params, const CodedSegment& segment)
      : rope_(params.raw_keys.rope),
        num_fast_(fast_pairs(rope_)),
        padded_((rope_.num_pairs + kPadding - 1) / kPadding * kPadding),
        products_(static_cast<std::size_t>(params.num_heads * 2 * padded_), 0.0f),
        turned_(static_cast<std::size_t>(kHeadsTogether * 2 * padded_), 0.0f) {
    const float factor = rope_.num_pairs == 0 ? 1 : rope_.cos[0];
    std::vector<Turn> to_middle(static_cast<std::size_t>(rope_.num_pairs), Turn{1, 0});
    if (segment.positions != nullptr) {
      turns_.emplace(rope_);
    } else {
      set_tables(factor, to_middle.data());
    }
    for (std::int64_t head = 0; head < params.num_heads; ++head) {
      const float* query = params.query + head * params.head_dim;
      const CodedKeyRows& rows = segment.rows[head / (params.num_heads / params.num_kv_heads)];
      float* product = products_.data() + 2 * head * padded_;
      for (std::int64_t pair = 0; pair < rope_.num_pairs; ++pair) {
        const std::int64_t i = first_of(rope_, pair), j = second_of(rope_, pair);
        const Turn back{to_middle[static_cast<std::size_t>(pair)].cos,
                        -to_middle[static_cast<std::size_t>(pair)].sin};
        const float scale = params.scale / factor;
        const Turn turned = Turn{scale * (query[i] * rows.mean(i) + query[j] * rows.mean(j)),
                                 scale * (query[j] * rows.mean(i) - query[i] * rows.mean(j))} *
                            back;
        product[pair] = turned.cos;
        product[padded_ + pair] = turned.sin;
      }
      float sum = 0;
      for (std::int64_t d = 2 * rope_.num_pairs; d < params.head_dim; ++d) {
        sum += query[d] * rows.mean(d);
      }
      unturned_.push_back(params.scale * sum);
    }
  }

  // As TileKeys'.
  void set_positions(const std::int32_t* positions) { turns_->set(positions); }

  // To scores of heads head .. head + kHeads - 1, as TileKeys' score.
  template <int kHeads>
  void add(std::int64_t head, std::int64_t position, std::int64_t stride, float* scores) {
    turn_back_to(position, head, kHeads);
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const auto add_to = [&](std::int64_t i, TokenVec sum, std::int64_t token) HWY_ATTR {
      float* to = scores + i * stride + token;
      const TokenVec own = hn::Set(d, unturned_[static_cast<std::size_t>(head + i)]);
      hn::StoreU(hn::Add(hn::LoadU(d, to), hn::Add(sum, own)), d, to);
    };
    if (turns_) {
      for (std::int64_t token = 0; token < kTileTokens; token += lanes) {
        TokenVec sums[kHeads], more[kHeads];
        add_pairs<kHeads>(turns_->cos(0) + token, turns_->sin(0) + token, kTileTokens,
                          rope_.num_pairs, sums, more);
        for (std::int64_t i = 0; i < kHeads; ++i) {
          add_to(i, hn::Add(sums[i], more[i]), token);
        }
      }
      return;
    }
    add_slow<kHeads>();
    for (std::int64_t i = 0; i < kHalfTile; i += lanes) {
      TokenVec even[kHeads], odd[kHeads];
      add_pairs<kHeads>(fast_.data() + i, fast_.data() + kHalfTile + i, 2 * kHalfTile, num_fast_,
                        even, odd);
      for (std::int64_t node = 0; num_fast_ < rope_.num_pairs && node < kNodes; ++node) {
        const TokenVec of_even = hn::LoadU(d, kNodeWeights.data() + node * kHalfTile + i);
        const TokenVec of_odd = hn::LoadU(d, kNodeWeights.data() + (kNodes + node) * kHalfTile + i);
        for (std::int64_t h = 0; h < kHeads; ++h) {
          const float* parts = at_nodes_ + 2 * (h * kNodes + node);
          even[h] = hn::MulAdd(hn::Set(d, parts[0]), of_even, even[h]);
          odd[h] = hn::MulAdd(hn::Set(d, parts[1]), of_odd, odd[h]);
        }
      }
      for (std::int64_t h = 0; h < kHeads; ++h) {
        add_to(h, hn::Add(even[h], odd[h]), kHalfTile + i);
        add_to(h, hn::Reverse(d, hn::Sub(even[h], odd[h])), kHalfTile - i - lanes);
      }
    }
  }

 private:
  static constexpr std::int64_t kPadding = 16;
  alignas(64) static constexpr std::array<float, 2 * kNodes* kHalfTile> kNodeWeights =
      node_weights();

  // Number of the first pairs that contain all fast ones.
  static std::int64_t fast_pairs(const RopeAngles& rope) {
    std::int64_t count = rope.num_pairs;
    while (count > 0 && rope.cos[rope.num_pairs + count - 1] > 0 &&
           std::abs(rope.sin[rope.num_pairs + count - 1]) <= kSlowTurn * rope.cos[0]) {
      --count;
    }
    return count;
  }
  Turn angle(std::int64_t position, std::int64_t pair) const {
    const std::int64_t at = position * rope_.num_pairs + pair;
    return {rope_.cos[at], rope_.sin[at]};
  }
  // Turns by distances from the middle of a tile, with the factor of all angles, and without it those from its first token
  // to the middle. to_middle [num_pairs]
  void set_tables(float factor, Turn* to_middle) {
    const std::int64_t num_slow = rope_.num_pairs - num_fast_;
    fast_.resize(static_cast<std::size_t>(num_fast_ * 2 * kHalfTile));
    slow_.resize(static_cast<std::size_t>(num_slow * 2 * kNodes));
    std::vector<Turn> halves(static_cast<std::size_t>(rope_.num_pairs));
    Turn* half = halves.data();
    for (std::int64_t pair = 0; pair < rope_.num_pairs; ++pair) {
      const Turn one = angle(1, pair), last = angle(kHalfTile - 1, pair);
      half[pair] = half_of({one.cos / factor, one.sin / factor});
      to_middle[pair] = Turn{last.cos / factor, last.sin / factor} * half[pair];
    }
    for (std::int64_t i = 0; i < kHalfTile; ++i) {
      float* to = fast_.data() + i;
      for (std::int64_t pair = 0; pair < num_fast_; ++pair, to += 2 * kHalfTile) {
        const Turn turn = angle(i, pair) * half[pair];
        to[0] = turn.cos;
        to[kHalfTile] = turn.sin;
      }
    }
    for (std::int64_t node = 0; node < kNodes; ++node) {
      float* to = slow_.data() + 2 * node;
      for (std::int64_t pair = num_fast_; pair < rope_.num_pairs; ++pair, to += 2 * kNodes) {
        const Turn turn = angle(kNodeHalves[static_cast<std::size_t>(node)], pair) * half[pair];
        to[0] = turn.cos;
        to[1] = turn.sin;
      }
    }
  }

  // Sums over `count` pairs of their first products times cosines, and of the second ones times sines, whose rows are
  // `stride` numbers apart.
  template <int kHeads>
  HWY_INLINE void add_pairs(const float* cos, const float* sin, std::int64_t stride,
                            std::int64_t count, TokenVec (&with_cos)[kHeads],
                            TokenVec (&with_sin)[kHeads]) const {
    const Tokens d;
    for (int i = 0; i < kHeads; ++i) {
      with_cos[i] = with_sin[i] = hn::Zero(d);
    }
    const float* product = turned_.data();
    for (std::int64_t pair = 0; pair < count; ++pair, cos += stride, sin += stride, product += 2) {
      const TokenVec c = hn::LoadU(d, cos), s = hn::LoadU(d, sin);
      for (int i = 0; i < kHeads; ++i) {
        with_cos[i] = hn::MulAdd(hn::Set(d, product[2 * i * padded_]), c, with_cos[i]);
        with_sin[i] = hn::MulAdd(hn::Set(d, product[2 * i * padded_ + 1]), s, with_sin[i]);
      }
    }
  }

  // The two parts of slow pairs at the nodes.
  template <int kHeads>
  HWY_INLINE void add_slow() {
    const hn::CappedTag<float, 2 * kNodes> d;
    const hn::Repartition<double, decltype(d)> d64;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t node = 0; node < 2 * kNodes; node += lanes) {
      hn::Vec<decltype(d)> sums[kHeads];
      for (int i = 0; i < kHeads; ++i) {
        sums[i] = hn::Zero(d);
      }
      const float* row = slow_.data() + node;
      for (std::int64_t pair = num_fast_; pair < rope_.num_pairs; ++pair, row += 2 * kNodes) {
        const auto turns = hn::LoadU(d, row);
        for (int i = 0; i < kHeads; ++i) {
          double both;
          std::memcpy(&both, turned_.data() + 2 * (i * padded_ + pair), sizeof(both));
          sums[i] = hn::MulAdd(hn::BitCast(d, hn::Set(d64, both)), turns, sums[i]);
        }
      }
      for (int i = 0; i < kHeads; ++i) {
        hn::StoreU(sums[i], d, at_nodes_ + 2 * i * kNodes + node);
      }
    }
  }

  void turn_back_to(std::int64_t position, std::int64_t head, std::int64_t count) {
    const Tokens d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t pair = 0; pair < rope_.num_pairs; pair += lanes) {
      const TokenVec cos = angles(rope_.cos, position, pair);
      const TokenVec sin = angles(rope_.sin, position, pair);
      for (std::int64_t i = 0; i < count; ++i) {
        const float* from = products_.data() + 2 * (head + i) * padded_ + pair;
        const TokenVec a = hn::LoadU(d, from), b = hn::LoadU(d, from + padded_);
        hn::StoreInterleaved2(hn::MulAdd(a, cos, hn::Mul(b, sin)),
                              hn::NegMulAdd(a, sin, hn::Mul(b, cos)), d,
                              turned_.data() + 2 * (i * padded_ + pair));
      }
    }
  }
  // Angles of a position, from a pair on; zeros behind the last pair.
  HWY_INLINE TokenVec angles(const float* table, std::int64_t position, std::int64_t pair) const {
    const Tokens d;
    const float* from = table + position * rope_.num_pairs + pair;
    const std::int64_t left = rope_.num_pairs - pair;
    if (left >= static_cast<std::int64_t>(hn::Lanes(d))) {
      return hn::LoadU(d, from);
    }
    HWY_ALIGN float some[kPadding] = {};
    std::copy(from, from + left, some);
    return hn::Load(d, some);
  }

  RopeAngles rope_;
  std::int64_t num_fast_, padded_;  // pairs
  std::optional<TileTurns> turns_;  // of positions that are not consecutive
  AlignedVector<float> fast_;       // cosines and sines by distance, [fast pairs, 2, kHalfTile]
  AlignedVector<float> slow_;       // at the nodes, [slow pairs, kNodes, 2]
  std::vector<float> unturned_;     // [num_heads], of channels without RoPE
  AlignedVector<float> products_;   // [num_heads, 2, padded]
  AlignedVector<float> turned_;     // [kHeadsTogether, padded, 2]
  alignas(64) float at_nodes_[kHeadsTogether * kNodes * 2] = {};
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
