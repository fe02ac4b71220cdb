// Rows of keys' codes and means in a block of attention over codes: their products with the query.
#pragma once

#include "runtime/kernels/cuda/attention_codes_shared.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

// Where a coefficient stands: in row `row` of its group, which is the first or second one of a step (CodedShared). No width: it is
// none of the block's.
struct CoefficientRow {
  int bits, group, row;
  int step, second;
};
KVC_HOST_DEVICE CoefficientRow coefficient_row(const DeviceTiles& tiles, int coefficient) {
  CoefficientRow place = {};
  int left = coefficient, group = 0, step = 0;
  KVC_UNROLL
  for (int bits = kMostCodeBits; bits >= 1; --bits) {
    const int of_width = tiles.coefficients[bits];
    const int groups = (of_width + kGroupCoefficients - 1) / kGroupCoefficients;
    if (left >= 0 && left < of_width) {
      const int in_width = left / kGroupCoefficients;
      place = {bits, group + in_width, left % kGroupCoefficients, step + in_width / 2,
               in_width % 2};
    }
    left -= of_width;
    group += groups;
    step += (groups + 1) / 2;
  }
  return place;
}

// Some of a thread's rows, from memory: the channels of the query that each meets, by which weights, and its column of the angles,
// -1 where it is not turned. Rows of codes come before those of means.
struct LoadedRows {
  static constexpr int kCount = 2;
  float weights[kCount][2];
  std::int32_t channels[kCount][2], angles[kCount];
};
KVC_DEVICE int num_rows_of(const CodedAttention& params) {
  return params.codes.count + params.means.count;
}
template <class Thread>
KVC_DEVICE LoadedRows load_rows(const Thread& thread, const CodedAttention& params, int from) {
  LoadedRows loaded;
  KVC_UNROLL
  for (int i = 0; i < LoadedRows::kCount; ++i) {
    const int row = from + i * thread.count(), mean = row - params.codes.count;
    const KeyRows of = mean >= 0 ? params.means : params.codes;
    const int in_head = mean >= 0 ? mean : row, of_kv_head = thread.block_y() * of.count;
    KVC_UNROLL
    for (int j = 0; j < 2; ++j) {
      const int at = 2 * of_kv_head + j * of.count + in_head;
      loaded.weights[i][j] = in_head < of.count ? of.weights[at] : 0.0f;
      loaded.channels[i][j] = in_head < of.count ? of.channels[at] : 0;
    }
    loaded.angles[i] =
        in_head < of.count && (mean >= 0 || params.turned) ? of.angles[of_kv_head + in_head] : -1;
  }
  return loaded;
}
// use(rows, the first one's number) of all of a thread's rows, of which those of `rows` are loaded.
template <class Thread, class Use>
KVC_DEVICE void for_rows(const Thread& thread, const CodedAttention& params, LoadedRows rows,
                         const Use& use) {
  const int step = LoadedRows::kCount * thread.count();
  KVC_NO_UNROLL
  for (int from = thread.index();;) {
    use(rows, from);
    from += step;
    if (from - thread.index() >= num_rows_of(params)) {  // the same for all threads
      break;
    }
    rows = load_rows(thread, params, from);
  }
}

// The query heads of the KV head to shared memory, and the largest of every 32 channels; by all threads.
template <class Thread>
KVC_DEVICE void stage_query(Thread& thread, const CodedAttention& params,
                            const CodedShared& shared) {
  constexpr int kAtOnce = 4;  // loads that are under way
  const int numbers = params.num_heads / params.num_kv_heads * params.head_dim;
  const auto* query =
      static_cast<const std::uint16_t*>(params.query) +
      static_cast<std::int64_t>(thread.block_z()) * params.num_heads * params.head_dim +
      static_cast<std::int64_t>(thread.block_y()) * numbers;
  auto* to = shared_at<std::uint16_t>(thread.shared(), shared.query());
  auto* largest = shared_at<float>(thread.shared(), shared.largest());
  KVC_NO_UNROLL
  for (int from = thread.index(); from < numbers; from += kAtOnce * thread.count()) {
    std::uint16_t loaded[kAtOnce];
    float of_warp[kAtOnce];
    KVC_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = from + i * thread.count();
      loaded[i] = at < numbers ? query[at] : static_cast<std::uint16_t>(0);
    }
    KVC_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      of_warp[i] = warp_max(thread, fabsf(widened(params.element, loaded[i])));
    }
    KVC_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = from + i * thread.count();
      if (at < numbers) {  // a multiple of 32
        to[at] = loaded[i];
        if (thread.lane() == 0) {
          largest[at / 32] = of_warp[i];
        }
      }
    }
  }
}

// The largest sum of a row's weights, of codes and of means, for each warp; by all threads.
template <class Thread>
KVC_DEVICE void stage_weights(Thread& thread, const CodedAttention& params,
                              const CodedShared& shared, const LoadedRows& first) {
  float of_codes = 0, of_means = 0;
  for_rows(thread, params, first, [&](const LoadedRows& rows, int from) {
    KVC_UNROLL
    for (int i = 0; i < LoadedRows::kCount; ++i) {
      const float sum = fabsf(rows.weights[i][0]) + fabsf(rows.weights[i][1]);
      const bool is_mean = from + i * thread.count() >= params.codes.count;
      of_codes = fmaxf(of_codes, is_mean ? 0.0f : sum);
      of_means = fmaxf(of_means, is_mean ? sum : 0.0f);
    }
  });
  of_codes = warp_max(thread, of_codes);
  of_means = warp_max(thread, of_means);
  auto* to = shared_at<float>(thread.shared(), shared.largest_weights()) + thread.warp();
  if (thread.lane() == 0) {
    to[0] = of_codes;
    to[CodedShared::kMostWarps] = of_means;
  }
}

// A power of two no less than x, and what divides by it; 1 where there is none in float32's normal range.
struct PowerOfTwo {
  float power, inverse;
};
KVC_HOST_DEVICE PowerOfTwo power_above(float x) {
  const std::uint32_t exponent = float_bits(x) >> 23;
  if (exponent < 1 || exponent > 252) {
    return {1, 1};
  }
  return {float_of_bits((exponent + 1) << 23), float_of_bits((253 - exponent) << 23)};
}

// What divides a head's products so that float16 holds them.
struct HeadScales {
  PowerOfTwo codes, means;
};
template <class Thread>
KVC_DEVICE HeadScales head_scales(Thread& thread, const CodedAttention& params,
                                  const CodedShared& shared, int head) {
  const auto* largest = shared_at<float>(thread.shared(), shared.largest());
  const auto* weights = shared_at<float>(thread.shared(), shared.largest_weights());
  const int parts = params.head_dim / 32, warps = thread.count() / 32;
  float query = 0;
  for (int i = 0; i < parts; ++i) {
    query = fmaxf(query, largest[head * parts + i]);
  }
  float codes = 0, means = 0;
  for (int warp = 0; warp < warps; ++warp) {
    codes = fmaxf(codes, weights[warp]);
    means = fmaxf(means, weights[CodedShared::kMostWarps + warp]);
  }
  return {power_above(query * codes), power_above(query * means)};
}

// Where a row's products with the first query head go, and what of them: two floats if it is turned, or a half of a step's words.
struct RowTarget {
  bool turned, is_product;  // neither: nowhere
  int at;                   // in floats of `queries` or halves of `products`
  float factor;             // of the half
  float first_level;        // of code 0
};
KVC_DEVICE RowTarget row_target(const CodedAttention& params, const DeviceTiles& keys,
                                const CodedShared& shared, int row, std::int32_t angle,
                                std::int32_t* angles) {
  const int mean = row - params.codes.count, before = shared.turned ? shared.key_groups : 0;
  const CoefficientRow place = coefficient_row(keys, mean >= 0 ? -1 : row);
  if (row >= num_rows_of(params) || (mean < 0 && place.bits == 0)) {
    return {false, false, 0, 0, 0};
  }
  if (mean >= 0 || shared.turned) {
    const int group = mean >= 0 ? before + mean / kGroupCoefficients : place.group;
    const int in_group = mean >= 0 ? mean % kGroupCoefficients : place.row;
    angles[kGroupCoefficients * group + in_group] = angle;
    return {true, false, 2 * (kGroupCoefficients * group * shared.heads + in_group), 0, 0};
  }
  const int word = 64 * (shared.heads / 8 * place.step) + 2 * (place.row / 2) + place.second;
  return {false, true, 2 * word + place.row % 2, static_cast<float>(1 << key_factor(place.bits)),
          first_code_level(place.bits)};
}

// Products of all rows with the staged query; by all threads.
template <class Thread>
KVC_DEVICE void prepare_rows(Thread& thread, const CodedAttention& params, const DeviceTiles& keys,
                             const CodedShared& shared, const LoadedRows& first) {
  constexpr int kAtOnce = 4;  // heads, whose steps do not wait for one another
  std::uint8_t* memory = thread.shared();
  const auto* query = shared_at<std::uint16_t>(memory, shared.query());
  auto* queries = shared_at<float>(memory, shared.queries());
  auto* products = shared_at<std::uint16_t>(memory, shared.products());
  auto* behind = shared_at<float>(memory, shared.behind()) + thread.warp() * shared.heads;
  const int heads = params.num_heads / params.num_kv_heads;
  // A lane's head; the others take its scales from there.
  const HeadScales own =
      head_scales(thread, params, shared, thread.lane() < heads ? thread.lane() : heads - 1);
  if (thread.index() < heads) {
    auto* scales = shared_at<float>(memory, shared.scales()) + thread.index();
    scales[0] = own.codes.power;
    scales[shared.heads] = own.means.power;
  }
  for_rows(thread, params, first, [&](const LoadedRows& rows, int from) {
    RowTarget targets[LoadedRows::kCount];
    KVC_UNROLL
    for (int i = 0; i < LoadedRows::kCount; ++i) {
      targets[i] = row_target(params, keys, shared, from + i * thread.count(), rows.angles[i],
                              shared_at<std::int32_t>(memory, shared.angles()));
    }
    KVC_NO_UNROLL
    for (int first_head = 0; first_head < heads; first_head += kAtOnce) {
      float sums[kAtOnce] = {};
      KVC_UNROLL
      for (int h = 0; h < kAtOnce; ++h) {
        const int head = first_head + h < heads ? first_head + h : heads - 1;
        const std::uint16_t* channels = query + head * params.head_dim;
        const float of_codes = thread.shuffle(own.codes.inverse, head);
        const float of_means = thread.shuffle(own.means.inverse, head);
        KVC_UNROLL
        for (int i = 0; i < LoadedRows::kCount; ++i) {
          const RowTarget& target = targets[i];
          const float by = from + i * thread.count() < params.codes.count ? of_codes : of_means;
          const float a = rows.weights[i][0] * by, b = rows.weights[i][1] * by;
          const float p = widened(params.element, channels[rows.channels[i][0]]);
          const float q = widened(params.element, channels[rows.channels[i][1]]);
          const float rounded = to_float(narrow<Float16>(a * p + b * q));
          sums[h] += target.first_level * rounded;
          if (target.is_product) {
            products[target.at + 128 * (head / 8) + 16 * (head % 8)] =
                narrow_bits(Float16{}, rounded * target.factor);
          }
          if (target.turned) {
            float* to = queries + target.at + 2 * kGroupCoefficients * head;
            to[0] = a * p + b * q;
            to[1] = a * q - b * p;
          }
        }
      }
      KVC_UNROLL
      for (int h = 0; h < kAtOnce; ++h) {
        sums[h] = warp_sum(thread, sums[h]);
      }
      KVC_UNROLL
      for (int h = 0; h < kAtOnce; ++h) {
        const int head = first_head + h;
        if (thread.lane() == 0 && head < heads) {
          behind[head] = from == thread.index() ? sums[h] : behind[head] + sums[h];
        }
      }
    }
  });
}

}  // namespace kvc
