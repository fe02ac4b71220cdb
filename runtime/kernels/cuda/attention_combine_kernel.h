// Grid: (head, sequence, chunks of 128 channels). A block's threads each take a part's maximum and sum; then its warps
// share the parts, a lane with four channels of several at once. Warps' sums are added in their order.
#pragma once

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

struct CombineShared {
  static constexpr int kLaneChannels = 4, kChannels = 32 * kLaneChannels;
  // A weight for every part; then a warp's sums of all channels, before these its maximum and sum of weights.
  static constexpr int bytes(int parts, int warps) {
    return (parts + warps * kChannels) * static_cast<int>(sizeof(float));
  }
};

KVC_HOST_DEVICE int num_parts_of(const CombinePartials& params) {
  int parts = 0;
  for (int s = 0; s < params.num_sources; ++s) {
    parts += params.sources[s].num_parts;
  }
  return parts;
}

template <class Thread>
class CombineBlock {
 public:
  KVC_DEVICE CombineBlock(const CombinePartials& params, Thread& thread)
      : params_(params),
        thread_(thread),
        head_(thread.block_x()),
        sequence_(thread.block_y()),
        first_channel_(thread.block_z() * kChannels),
        warps_(thread.count() / 32),
        weights_(reinterpret_cast<float*>(thread.shared())),
        of_warps_(weights_ + num_parts_of(params)) {}

  KVC_DEVICE void run() {
    const SoftmaxState total = weigh_parts();
    if (first_channel_ == 0 && thread_.index() == 0 && params_.log_sum != nullptr) {
      params_.log_sum[row()] = total.max + logf(total.sum);
    }
    add_parts();
    thread_.sync();
    for (int i = thread_.index(); i < kChannels; i += thread_.count()) {
      if (first_channel_ + i < params_.width) {
        write(first_channel_ + i, total.sum == 0 ? 0.0f : sum_of_warps(i) / total.sum);
      }
    }
  }

 private:
  static constexpr int kLaneChannels = CombineShared::kLaneChannels;
  static constexpr int kChannels = CombineShared::kChannels;
  static constexpr int kPartsAtOnce = 8;  // whose loads are under way together

  KVC_DEVICE std::int64_t row() const {
    return static_cast<std::int64_t>(sequence_) * params_.num_heads + head_;
  }

  // weights_ become exp(max - total.max) of every part. Returns the softmax of all parts.
  KVC_DEVICE SoftmaxState weigh_parts() {
    SoftmaxState own;
    for (int s = 0, before = 0; s < params_.num_sources; ++s) {
      const DevicePartials& source = params_.sources[s];
      for (int part = thread_.index(); part < source.num_parts; part += thread_.count()) {
        const std::int64_t from = source.row(sequence_, part, params_.num_heads, head_);
        const float max = source.max[from];
        combine_softmax(own, {max, source.sum == nullptr ? 1.0f : source.sum[from]});
        weights_[before + part] = max;
      }
      before += source.num_parts;
    }
    const SoftmaxState total = total_of(own);
    for (int s = 0, before = 0; s < params_.num_sources; ++s) {
      const int parts = params_.sources[s].num_parts;
      for (int part = thread_.index(); part < parts; part += thread_.count()) {
        weights_[before + part] = exp_below(weights_[before + part], total.max);
      }
      before += parts;
    }
    thread_.sync();
    return total;
  }

  // The softmax of all threads' parts, the same bits in each thread.
  KVC_DEVICE SoftmaxState total_of(const SoftmaxState& own) {
    SoftmaxState total;
    const float of_warp = warp_max(thread_, own.max);
    const float sum = warp_sum(thread_, exp_below(own.max, of_warp) * own.sum);
    of_warps_[2 * thread_.warp()] = of_warp;  // all lanes write the same
    of_warps_[2 * thread_.warp() + 1] = sum;
    thread_.sync();
    for (int warp = 0; warp < warps_; ++warp) {
      total.max = fmaxf(total.max, of_warps_[2 * warp]);
    }
    for (int warp = 0; warp < warps_; ++warp) {
      total.sum += exp_below(of_warps_[2 * warp], total.max) * of_warps_[2 * warp + 1];
    }
    return total;
  }

  // of_warps_ become the warps' weighted sums of outputs. A part without weight is not read.
  KVC_DEVICE void add_parts() {
    float sums[kLaneChannels] = {};
    for (int s = 0, before = 0; s < params_.num_sources; ++s) {
      const DevicePartials& source = params_.sources[s];
      for (int part = thread_.warp(); part < source.num_parts; part += kPartsAtOnce * warps_) {
        float weights[kPartsAtOnce], outputs[kPartsAtOnce][kLaneChannels];
        KVC_UNROLL
        for (int i = 0; i < kPartsAtOnce; ++i) {
          const int one = part + i * warps_;
          weights[i] = one < source.num_parts ? weights_[before + one] : 0.0f;
          load(source, one, weights[i] > 0, outputs[i]);
        }
        KVC_UNROLL
        for (int i = 0; i < kPartsAtOnce; ++i) {
          KVC_UNROLL
          for (int j = 0; j < kLaneChannels; ++j) {
            sums[j] += weights[i] * outputs[i][j];
          }
        }
      }
      before += source.num_parts;
    }
    KVC_UNROLL
    for (int j = 0; j < kLaneChannels; ++j) {
      of_warps_[thread_.warp() * kChannels + 32 * j + thread_.lane()] = sums[j];
    }
  }
  // The lane's channels of a part, or zeros.
  KVC_DEVICE void load(const DevicePartials& source, int part, bool valid,
                       float (&to)[kLaneChannels]) const {
    const float* from = source.output +
                        source.row(sequence_, part, params_.num_heads, head_) * params_.width +
                        first_channel_ + thread_.lane();
    KVC_UNROLL
    for (int j = 0; j < kLaneChannels; ++j) {
      const bool in_width = first_channel_ + 32 * j + thread_.lane() < params_.width;
      to[j] = valid && in_width ? from[32 * j] : 0.0f;
    }
  }

  KVC_DEVICE float sum_of_warps(int channel) const {
    float sum = 0;
    for (int warp = 0; warp < warps_; ++warp) {
      sum += of_warps_[warp * kChannels + channel];
    }
    return sum;
  }
  KVC_DEVICE void write(int channel, float output) const {
    const std::int64_t to = row() * params_.width + channel;
    if (params_.output != nullptr) {
      static_cast<std::uint16_t*>(params_.output)[to] = narrow_bits(params_.element, output);
    }
    if (params_.output_float != nullptr) {
      params_.output_float[to] = output;
    }
  }

  const CombinePartials& params_;
  Thread& thread_;
  int head_, sequence_, first_channel_, warps_;
  float* weights_;   // [parts]
  float* of_warps_;  // [warps, kChannels], and before that [warps, 2]
};

struct CombinePartialsKernel : Kernel<CombinePartials, 256> {
  static constexpr const char* kName = "combine_partials";

  template <class Thread>
  static KVC_DEVICE void run(const CombinePartials& params, Thread& thread) {
    CombineBlock<Thread>(params, thread).run();
  }
};

template <class Launcher>
LaunchError launch_kernels(const CombinePartials& params, const Launcher& launcher) {
  const int threads = launcher.threads(CombinePartialsKernel::kThreads);
  return launcher.template run<CombinePartialsKernel>(
      params,
      {params.num_heads, params.num_sequences, divide_up(params.width, CombineShared::kChannels)},
      threads, CombineShared::bytes(num_parts_of(params), threads / 32));
}

}  // namespace kvc
