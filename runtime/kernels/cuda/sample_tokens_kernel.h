// Grid: sequences. A block's threads share the vocabulary. Thresholds of top-k and top-p are found digit by digit in
// histograms of the logits' distance from the largest; the draw is a prefix sum in the order of the ids.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_random.h"
#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/sample_threshold.h"

namespace kvc {

template <class Thread>
class SampleBlock {
 public:
  KVC_DEVICE SampleBlock(const SampleTokens& params, Thread& thread)
      : params_(params),
        thread_(thread),
        sequence_(thread.block_x()),
        memory_(reinterpret_cast<std::uint64_t*>(thread.shared())),
        ids_(params, thread, memory_),
        thresholds_(thread, memory_ + SampleShared::of_ids(thread.count())) {}

  KVC_DEVICE void run() {
    std::int32_t token = largest_logit();
    if (token != kNoToken && params_.temperature > 0) {
      token = draw();
    }
    if (thread_.index() == 0) {
      finish_sample(params_, sequence_, token);
    }
  }

 private:
  // The id of the largest logit, the lowest of equal ones; sets largest_.
  KVC_DEVICE std::int32_t largest_logit() {
    auto* values = reinterpret_cast<float*>(memory_);  // [threads]
    auto* ids = reinterpret_cast<std::int32_t*>(memory_ + thread_.count());
    float best = negative_infinity();
    std::int32_t best_id = -1;
    bool finite = true;
    ids_.template visit_all<16>([&](int id, float x) {  // from memory; later ones from L2
      finite = finite && x < INFINITY;
      if (best_id < 0 || x > best) {
        best = x;
        best_id = id;
      }
    });
    values[thread_.index()] = finite ? best : INFINITY;
    ids[thread_.index()] = best_id;
    thread_.sync();
    for (int half = thread_.count() / 2; half > 0; half /= 2) {
      if (thread_.index() < half) {
        const float other = values[thread_.index() + half];
        const std::int32_t other_id = ids[thread_.index() + half];
        const bool higher = other > values[thread_.index()];
        const bool equal = other == values[thread_.index()];
        if (other_id >= 0 &&
            (higher || ids[thread_.index()] < 0 || (equal && other_id < ids[thread_.index()]))) {
          values[thread_.index()] = other;
          ids[thread_.index()] = other_id;
        }
      }
      thread_.sync();
    }
    largest_ = values[0];
    const std::int32_t result = largest_ < INFINITY ? ids[0] : kNoToken;
    thread_.sync();
    return result;
  }

  KVC_DEVICE float weight(float x) const {
    return relative_weight(largest_, x, params_.temperature);
  }
  // An id's mass, where its key is at most `last`.
  KVC_DEVICE std::uint64_t mass_up_to(float x, std::uint32_t last) const {
    return distance_key(largest_, x) <= last ? probability_mass(weight(x)) : 0;
  }

  KVC_DEVICE std::int32_t draw() {
    const auto key = [&](float x) { return distance_key(largest_, x); };
    std::uint32_t last = 0xFFFFFFFFu;  // keys up to this one are kept,
    std::int32_t last_id = INT32_MAX;  // of its own the ids up to this one
    if (params_.top_k > 0 && params_.top_k < params_.vocab_size) {
      const auto count = static_cast<std::uint64_t>(params_.top_k);
      last = thresholds_
                 .find(
                     ids_, key, [](int, float) { return std::uint64_t{1}; },
                     [&](std::uint64_t) { return count; })
                 .key;
    }
    if (params_.top_p < 1) {
      const auto found = thresholds_.find(
          ids_, key, [&](int, float x) { return mass_up_to(x, last); },
          [&](std::uint64_t total) { return wanted_mass(params_.top_p, total); });
      last = found.key;
      const auto tied = [&](int, float x) { return key(x) == last ? mass_up_to(x, last) : 0; };
      ids_.add_amounts(tied);
      last_id = ids_.id_at(found.of_key - 1, tied);
    }
    const auto kept = [&](int id, float x) {
      const std::uint32_t own = key(x);
      if (own > last || (own == last && id > last_id)) {
        return std::uint64_t{0};
      }
      const float relative = weight(x);
      return relative >= params_.min_p ? probability_mass(relative) : 0;
    };
    const std::uint64_t total = ids_.add_amounts(kept);
    const std::uint64_t bits = random_bits(
        params_.seeds[sequence_], static_cast<std::uint32_t>(params_.positions[sequence_] + 1));
    return ids_.id_at(scaled_bits(bits, total), kept);
  }

  const SampleTokens& params_;
  Thread& thread_;
  int sequence_;
  std::uint64_t* memory_;
  SampleIds<Thread> ids_;
  SampleThreshold<Thread> thresholds_;
  float largest_ = 0;
};

struct SampleTokensKernel : Kernel<SampleTokens, 512, 1> {
  static constexpr const char* kName = "sample_tokens";

  template <class Thread>
  static KVC_DEVICE void run(const SampleTokens& params, Thread& thread) {
    SampleBlock<Thread>(params, thread).run();
  }
};

template <class Launcher>
LaunchError launch_kernels(const SampleTokens& params, const Launcher& launcher) {
  const int threads = launcher.threads(SampleTokensKernel::kThreads);
  return launcher.template run<SampleTokensKernel>(params, {params.num_sequences}, threads,
                                                   SampleShared::bytes(threads));
}

}  // namespace kvc
