// The scores of a tile of coded keys that are not turned: their planes' codes times a KV head's query in their terms.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/attention_codes_shared.h"
#include "runtime/kernels/cuda/attention_rows.h"

namespace kvc {

// Scores by the width of planes: of 1, 2 and 4 bits, each in units of its own.
template <int kQueryTiles>
struct PlaneScores {
  ScoreTile<kQueryTiles> of[3];
};

// sums += products of the query with planes of kPlane bits of two groups of keys of kBits bits or, without kBoth, of one.
// codes: the lane's first coefficient of the first one; b: what both meet
template <int kBits, int kPlane, bool kBoth, int kQueryTiles, class Thread>
KVC_DEVICE void add_key_plane(Thread& thread, const std::uint8_t* codes,
                              const std::uint32_t (&b)[kQueryTiles][2],
                              ScoreTile<kQueryTiles>& sums) {
  constexpr int kExtra = key_plane_factor(kBits, kPlane);
  const std::uint8_t* first = codes + plane_offset(kBits, kPlane);
  std::uint32_t fields[2][4] = {};
  KVC_UNROLL
  for (int i = 0; i < (kBoth ? 2 : 1); ++i) {
    const std::uint8_t* of_group = first + i * kGroupCoefficients * 4 * kBits;
    token_fields<kPlane>(of_group, of_group + 4 * kBits, thread.lane() / 4, fields[i]);
  }
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    std::uint32_t of_plane[2] = {b[n][0], b[n][1]};
    if constexpr (kExtra > 0) {
      const std::uint32_t factor = pack_pair<Float16>(1 << kExtra, 1 << kExtra);
      of_plane[0] = multiply_pairs(b[n][0], factor);
      of_plane[1] = multiply_pairs(b[n][1], factor);
    }
    KVC_UNROLL
    for (int m = 0; m < 2; ++m) {
      const std::uint32_t a[4] = {fields[0][2 * m], fields[0][2 * m + 1], fields[1][2 * m],
                                  fields[1][2 * m + 1]};
      thread.multiply_add(Float16{}, sums.s[m][n], a, of_plane);
    }
  }
}

// The same of all their planes.
template <int kBits, bool kBoth, int kQueryTiles, class Thread>
KVC_DEVICE void add_key_groups(Thread& thread, const std::uint8_t* codes,
                               const std::uint32_t* products, ScoreTile<kQueryTiles>& eights,
                               PlaneScores<kQueryTiles>& sums) {
  std::uint32_t b[kQueryTiles][2];
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    two_words(products + 64 * n, b[n]);
  }
  if constexpr (kBits == 8) {
    add_key_plane<kBits, 8, kBoth>(thread, codes, b, eights);
  }
  if constexpr ((kBits & 4) != 0) {
    add_key_plane<kBits, 4, kBoth>(thread, codes, b, sums.of[2]);
  }
  if constexpr ((kBits & 2) != 0) {
    add_key_plane<kBits, 2, kBoth>(thread, codes, b, sums.of[1]);
  }
  if constexpr ((kBits & 1) != 0) {
    add_key_plane<kBits, 1, kBoth>(thread, codes, b, sums.of[0]);
  }
}

// scores += factor * sums of planes of kPlane bits
template <int kPlane, int kQueryTiles, class Thread>
KVC_DEVICE void add_plane_scores(Thread& thread, const ScoreTile<kQueryTiles>& sums,
                                 ScoreTile<kQueryTiles>& scores) {
  KVC_UNROLL
  for (int m = 0; m < 2; ++m) {
    KVC_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float unit = key_unit<kPlane>(thread.lane() / 4, 2 * m + half);
      KVC_UNROLL
      for (int n = 0; n < kQueryTiles; ++n) {
        scores.s[m][n][2 * half] += unit * sums.s[m][n][2 * half];
        scores.s[m][n][2 * half + 1] += unit * sums.s[m][n][2 * half + 1];
      }
    }
  }
}

// Keys of kBits bits. products: of the first step that is not done; goes on
template <int kBits, int kQueryTiles, class Thread>
KVC_DEVICE void add_key_width(Thread& thread, const CodedShared& shared, const std::uint8_t* keys,
                              const std::uint32_t*& products, ScoreTile<kQueryTiles>& scores,
                              PlaneScores<kQueryTiles>& sums) {
  const KeyWidth width = shared_at<KeyWidth>(thread.shared(), shared.widths())[kBits - 1];
  if (width.groups == 0) {
    return;
  }
  const std::uint8_t* codes = keys + width.byte + 2 * (thread.lane() % 4) * 4 * kBits;
  ScoreTile<kQueryTiles> eights = {};
  KVC_NO_UNROLL
  for (int left = width.groups; left > 1; left -= 2) {
    add_key_groups<kBits, true>(thread, codes, products, eights, sums);
    codes += 2 * kGroupCoefficients * 4 * kBits;
    products += 64 * kQueryTiles;
  }
  if (width.groups % 2 != 0) {
    add_key_groups<kBits, false>(thread, codes, products, eights, sums);
    products += 64 * kQueryTiles;
  }
  if constexpr (kBits == 8) {
    add_plane_scores<8>(thread, eights, scores);
  }
}

// scores = the levels of all keys that are not turned.
template <int kQueryTiles, class Thread>
KVC_DEVICE void score_all_widths(Thread& thread, const CodedShared& shared,
                                 const std::uint8_t* keys, ScoreTile<kQueryTiles>& scores) {
  const auto* behind = shared_at<float>(thread.shared(), shared.scales()) + 2 * shared.heads;
  const auto* products =
      shared_at<std::uint32_t>(thread.shared(), shared.products()) + 2 * thread.lane();
  KVC_UNROLL
  for (int n = 0; n < kQueryTiles; ++n) {
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float of_head = behind[8 * n + 2 * (thread.lane() % 4) + i % 2];
      scores.s[0][n][i] = of_head;
      scores.s[1][n][i] = of_head;
    }
  }
  PlaneScores<kQueryTiles> sums = {};
  add_key_width<8>(thread, shared, keys, products, scores, sums);
  add_key_width<7>(thread, shared, keys, products, scores, sums);
  add_key_width<6>(thread, shared, keys, products, scores, sums);
  add_key_width<5>(thread, shared, keys, products, scores, sums);
  add_key_width<4>(thread, shared, keys, products, scores, sums);
  add_key_width<3>(thread, shared, keys, products, scores, sums);
  add_key_width<2>(thread, shared, keys, products, scores, sums);
  add_key_width<1>(thread, shared, keys, products, scores, sums);
  add_plane_scores<4>(thread, sums.of[2], scores);
  add_plane_scores<2>(thread, sums.of[1], scores);
  add_plane_scores<1>(thread, sums.of[0], scores);
}

}  // namespace kvc
