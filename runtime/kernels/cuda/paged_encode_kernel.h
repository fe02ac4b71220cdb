// Grid: (32 tokens, block of codes, coefficients in chunks of the block's threads). A thread takes a coefficient of the
// tokens.
#pragma once

#include "runtime/kernels/cuda/paged_channels.h"

namespace kvc {

KVC_HOST_DEVICE float engine_number(DeviceElement element, const EngineRows& rows, int token,
                                    int head, int in_head) {
  return widened(element,
                 static_cast<const std::uint16_t*>(
                     rows.data)[token * rows.token_stride + head * rows.head_stride + in_head]);
}

// A token's number of a block's channel, as it is coded. place: the channel's.
KVC_HOST_DEVICE float centred_number(const EncodeTokens& params, const DeviceBlock& block,
                                     const BlockChannel& place, int token, std::int64_t position,
                                     int channel) {
  const EngineRows& rows = place.is_key ? params.keys[place.layer] : params.values[place.layer];
  float number = engine_number(params.element, rows, token, place.head, place.in_head);
  const DeviceRope& rope = params.ropes[place.layer];
  const int distance = partner_distance(rope, place.in_head);
  if (place.is_key && !block.rotated && distance != 0) {
    const float other =
        engine_number(params.element, rows, token, place.head, place.in_head + distance);
    number = turned_number(rope, place.in_head, position, number, other, true);
  }
  return number - mean_at(params.of, rope, block, place, channel, position);
}

KVC_HOST_DEVICE std::int64_t within(const EncodeTokens& params, std::int64_t position) {
  const std::int64_t last = params.num_positions - 1;
  return position < 0 ? 0 : position < last ? position : last;
}

// A number of E.
KVC_HOST_DEVICE float encoder_number(const PagedBlocks& of, const DeviceBlock& block,
                                     std::int64_t index) {
  return block.encoder_float16
             ? widened(DeviceElement::kFloat16,
                       reinterpret_cast<const std::uint16_t*>(of.image + block.encoder)[index])
             : image_floats(of, block.encoder)[index];
}

struct EncodeTokensKernel : Kernel<EncodeTokens, 128> {
  static constexpr const char* kName = "encode_tokens";
  // Numbers from one staged row to the next: of 16 bytes' alignment, and rows in different banks.
  static constexpr int kStride = kPagedTokens + 4;
  static constexpr int kSharedBytes = kStagedRows * kStride * 4;

  template <class Thread>
  static KVC_DEVICE void run(const EncodeTokens& params, Thread& thread) {
    const DeviceBlock& block = params.of.blocks[thread.block_y()];
    const int k = block.tiles.num_coefficients, n = block.channels;
    if (thread.block_z() * thread.count() >= k) {
      return;
    }
    const int first = thread.block_x() * kPagedTokens,
              coefficient = thread.block_z() * thread.count() + thread.index();
    const int count = params.count - first < kPagedTokens ? params.count - first : kPagedTokens;
    auto* staged = reinterpret_cast<float*>(thread.shared());  // [kStagedRows, kStride]
    float sums[kPagedTokens] = {};
    for (int channel = 0; channel < n; channel += kStagedRows) {
      const int rows = n - channel < kStagedRows ? n - channel : kStagedRows;
      thread.sync();
      stage(params, thread, block, channel, first, count, staged);
      thread.sync();
      if (coefficient < k) {
        KVC_UNROLL_BY_8  // so many numbers of E are under way
            for (int row = 0; row < rows; ++row) {
          const float weight = encoder_number(
              params.of, block, static_cast<std::int64_t>(channel + row) * k + coefficient);
          add_tokens(staged + row * kStride, weight, count, sums);
        }
      }
    }
    float* z = params.z + static_cast<std::int64_t>(first) * params.of.num_coefficients +
               block.first_coefficient + coefficient;
    KVC_UNROLL
    for (int t = 0; t < kPagedTokens; ++t) {
      if (t < count && coefficient < k) {
        z[static_cast<std::int64_t>(t) * params.of.num_coefficients] = sums[t];
      }
    }
  }

 private:
  // Numbers of the tokens from `first` on, of the block's channels from `channel` on: neighbouring threads take neighbouring
  // channels, and each keeps to its own.
  template <class Thread>
  static KVC_DEVICE void stage(const EncodeTokens& params, Thread& thread, const DeviceBlock& block,
                               int channel, int first, int count, float* staged) {
    const int row = thread.index() % kStagedRows;
    if (channel + row >= block.channels) {
      return;
    }
    constexpr int kAtOnce = 4;  // tokens whose numbers are under way
    const BlockChannel place = block_channel(params.of, block, channel + row);
    const int step = thread.count() / kStagedRows;
    for (int from = thread.index() / kStagedRows; from < kPagedTokens; from += kAtOnce * step) {
      std::int64_t positions[kAtOnce];
      float numbers[kAtOnce];
      KVC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = from + i * step;
        positions[i] = token < count ? within(params, params.positions[first + token]) : 0;
      }
      KVC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = from + i * step;
        numbers[i] = token < count ? centred_number(params, block, place, first + token,
                                                    positions[i], channel + row)
                                   : 0.0f;
      }
      KVC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (from + i * step < kPagedTokens) {
          staged[row * kStride + from + i * step] = numbers[i];
        }
      }
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const EncodeTokens& params, const Launcher& launcher) {
  const int threads = launcher.threads(EncodeTokensKernel::kThreads);
  return launcher.template run<EncodeTokensKernel>(
      params,
      {divide_up(params.count, kPagedTokens), params.of.num_blocks,
       divide_up(params.of.most_coefficients, threads)},
      threads, EncodeTokensKernel::kSharedBytes);
}

}  // namespace kvc
