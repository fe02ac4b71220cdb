// Grid: (head, sequence, channels in chunks of the block's threads). A thread combines one channel.
#pragma once

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/cuda/kernel.h"

namespace kvc {

struct CombinePartialsKernel : Kernel<CombinePartials, 128> {
  static constexpr const char* kName = "combine_partials";

  template <class Thread>
  static KVC_DEVICE void run(const CombinePartials& params, Thread& thread) {
    const int head = thread.block_x(), sequence = thread.block_y();
    const int channel = thread.block_z() * thread.count() + thread.index();
    const auto visit_parts = [&](const auto& visit) {
      for (int s = 0; s < params.num_sources; ++s) {
        const DevicePartials& source = params.sources[s];
        for (int part = 0; part < source.num_parts; ++part) {
          visit(source, source.row(sequence, part, params.num_heads, head));
        }
      }
    };
    SoftmaxState total;
    visit_parts([&](const DevicePartials& source, std::int64_t row) {
      combine_softmax(total, {source.max[row], source.sum == nullptr ? 1.0f : source.sum[row]});
    });
    const std::int64_t to = static_cast<std::int64_t>(sequence) * params.num_heads + head;
    if (channel == 0 && params.log_sum != nullptr) {
      params.log_sum[to] = total.max + logf(total.sum);
    }
    if (channel >= params.width) {
      return;
    }
    float output = 0;
    visit_parts([&](const DevicePartials& source, std::int64_t row) {
      const float weight = exp_below(source.max[row], total.max);
      if (weight > 0) {
        output += weight * source.output[row * params.width + channel];
      }
    });
    output = total.sum > 0 ? output / total.sum : 0.0f;
    if (params.output != nullptr) {
      static_cast<std::uint16_t*>(params.output)[to * params.width + channel] =
          narrow_bits(params.element, output);
    }
    if (params.output_float != nullptr) {
      params.output_float[to * params.width + channel] = output;
    }
  }
};

template <class Launcher>
LaunchError launch_kernels(const CombinePartials& params, const Launcher& launcher) {
  const int threads = launcher.threads(CombinePartialsKernel::kThreads);
  return launcher.template run<CombinePartialsKernel>(
      params, {params.num_heads, params.num_sequences, divide_up(params.width, threads)}, threads);
}

}  // namespace kvc
