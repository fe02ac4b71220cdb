// Planes of codes (runtime/kernels/code_tiles.h) as they stand, as left sides of products: a float16 whose bits are below 2^11
// is those bits times 2^-24, and tensor cores multiply such numbers exactly (doi.org/10.7717/peerj-cs.330). So a plane's words
// need masks alone. Products are those of codes, not of levels: first_code_level() of the coefficient is added to their sums.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/code_levels.h"
#include "runtime/kernels/cuda/device_numbers.h"

namespace kvc {

// code_level() of code 0.
KVC_HOST_DEVICE float first_code_level(int bits) { return code_level(0, bits); }

// Kinds of planes: 0 .. 3 of 1, 2, 4 and 8 bits, 4 the plane of one bit beside one of four bits alone. Kind k of a width is flag
// 1 << k of plane_kinds().
constexpr int kPlaneKinds = 5;
KVC_HOST_DEVICE int plane_kinds(int bits) { return bits == 5 ? 4 | 16 : bits; }
// The kinds from wide planes to narrow ones.
KVC_HOST_DEVICE constexpr int kind_in_order(int order) { return order < 4 ? 3 - order : 4; }
KVC_HOST_DEVICE constexpr int plane_bits(int kind) { return kind == 4 ? 1 : 1 << kind; }
// Bytes of a coefficient before its plane of `plane` bits.
KVC_HOST_DEVICE constexpr int plane_offset(int bits, int plane) {
  return 4 * (bits & ~(2 * plane - 1));
}

// The same field of eight codes of a plane lies in both halves of a word: the four codes j of a run in bits field_shift() and
// higher, once split_fields() has masked them.
KVC_HOST_DEVICE constexpr int field_shift(int plane, int j) {
  return plane == 8 ? 0 : plane == 4 ? 4 * (j % 2) : plane * j;
}

// Two runs of four codes of a plane, as the halves of `words[0]`, or, of 8 bits, numbers 0 and 1 of both in words[0], 2 and 3 in
// words[1]; `first_bit`: of the first ones.
template <int kPlane>
KVC_HOST_DEVICE void split_fields(const std::uint32_t (&words)[2], int first_bit,
                                  std::uint32_t (&fields)[4]) {
  constexpr std::uint32_t kMask = ((1u << kPlane) - 1) * 0x00010001u;
  if constexpr (kPlane == 8) {
    KVC_UNROLL
    for (int j = 0; j < 4; ++j) {
      fields[j] = words[j / 2] >> (8 * (j % 2)) & kMask;
    }
  } else if constexpr (kPlane == 4) {
    KVC_UNROLL
    for (int j = 0; j < 4; ++j) {
      fields[j] = words[0] >> (8 * (j / 2)) & kMask << (4 * (j % 2));
    }
  } else {
    KVC_UNROLL
    for (int j = 0; j < 4; ++j) {
      fields[j] = words[0] & kMask << first_bit << (kPlane * j);
    }
  }
}

template <class T>
KVC_HOST_DEVICE std::uint32_t code_word(const std::uint8_t* codes) {
  return *reinterpret_cast<const T*>(codes);
}

// Fields of tokens 4 quad .. 4 quad + 3 of two coefficients, whose planes start at `first` and `second`: number j has both codes
// of token j, times 2^token_shift().
template <int kPlane>
KVC_HOST_DEVICE int token_shift(int quad, int j) {
  return field_shift(kPlane, j) + (kPlane == 1 ? 4 * (quad % 2) : 0);
}
template <int kPlane>
KVC_HOST_DEVICE void token_fields(const std::uint8_t* first, const std::uint8_t* second, int quad,
                                  std::uint32_t (&fields)[4]) {
  std::uint32_t words[2] = {};
  if constexpr (kPlane == 8) {
    const std::uint32_t a = code_word<std::uint32_t>(first + 4 * quad);
    const std::uint32_t b = code_word<std::uint32_t>(second + 4 * quad);
    words[0] = low_halves(a, b);
    words[1] = high_halves(a, b);
  } else if constexpr (kPlane == 4) {
    words[0] = code_word<std::uint16_t>(first + 2 * quad) +
               code_word<std::uint16_t>(second + 2 * quad) * 0x10000u;
  } else {
    const int byte = kPlane * quad / 2;
    words[0] =
        code_word<std::uint8_t>(first + byte) + code_word<std::uint8_t>(second + byte) * 0x10000u;
  }
  split_fields<kPlane>(words, kPlane == 1 ? 4 * (quad % 2) : 0, fields);
}

// Fields of tokens 8 eighth .. 8 eighth + 7 of one coefficient, whose plane has the lane's part at `codes`: number j has the codes
// of tokens j and 4 + j, times 2^field_shift(). The part of lane `eighth` is kPlane bytes, those from kPlane * eighth on.
template <int kPlane>
KVC_HOST_DEVICE void coefficient_fields(const std::uint8_t* codes, std::uint32_t (&fields)[4]) {
  std::uint32_t words[2] = {};
  if constexpr (kPlane == 8) {
    const std::uint32_t a = code_word<std::uint32_t>(codes);
    const std::uint32_t b = code_word<std::uint32_t>(codes + 4);
    words[0] = low_halves(a, b);
    words[1] = high_halves(a, b);
  } else if constexpr (kPlane == 4) {
    words[0] = code_word<std::uint32_t>(codes);
  } else if constexpr (kPlane == 2) {
    const std::uint32_t all = code_word<std::uint16_t>(codes);
    words[0] = spread_bytes(all);
  } else {
    words[0] = code_word<std::uint8_t>(codes) * 0x1001u;
  }
  split_fields<kPlane>(words, 0, fields);
}

// Planes add up to codes if those of kind k count 2^kind_unit(k) times, and coefficients 2^width_unit() times besides. But for
// planes of one bit beside one of four alone, a kind of their own for that.
KVC_HOST_DEVICE constexpr int kind_unit(int kind) {
  return kind == 1 ? 1 : kind == 2 ? 3 : kind == 4 ? 2 : 0;
}
KVC_HOST_DEVICE constexpr int width_unit(int bits) {
  return bits == 2 || bits == 6 ? -1 : bits == 4 ? -3 : bits == 5 ? -2 : 0;
}

// Sums over keys' coefficients: codes meet the query times 2^key_factor() and, of one plane, 2^key_plane_factor(), no less than 1
// so that float16 holds it as well; then sums of planes of kPlane bits count key_unit() times.
KVC_HOST_DEVICE constexpr int key_factor(int bits) { return 3 + width_unit(bits); }
KVC_HOST_DEVICE constexpr int key_plane_factor(int bits, int plane) {
  return bits == 5 && plane == 1 ? kind_unit(4) : 0;
}
template <int kPlane>
KVC_HOST_DEVICE float key_unit(int quad, int j) {
  constexpr int kUnit = kPlane == 2 ? kind_unit(1) : kPlane == 4 ? kind_unit(2) : 0;
  return static_cast<float>(1 << (24 - 3 + kUnit - token_shift<kPlane>(quad, j)));
}

// Sums over values' tokens: field j of a plane of kind k meets a weight times 2^field_factor(k, j), from 1 to 2^8, which float16
// holds as well; sums of codes are then sum_unit() times those.
KVC_HOST_DEVICE constexpr int field_factor(int kind, int j) {
  return 5 + kind_unit(kind) - field_shift(plane_bits(kind), j);
}
KVC_HOST_DEVICE float sum_unit(int bits) {
  return static_cast<float>(1 << (24 - 5 + width_unit(bits)));
}

}  // namespace kvc
