// Grid: sequences. A block's threads share the vocabulary. Thresholds of top-k and top-p are found digit by digit in
// histograms of the logits' distance from the largest; the draw is a prefix sum in the order of the ids.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/device_random.h"
#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/sample_arithmetic.h"

namespace kvc {

struct SampleShared {
  static constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;
  static constexpr int bytes(int threads) { return (kBins + 2 * threads + 4) * 8; }
};

template <class Thread>
class SampleBlock {
 public:
  KVC_DEVICE SampleBlock(const SampleTokens& params, Thread& thread)
      : params_(params),
        thread_(thread),
        sequence_(thread.block_x()),
        bins_(reinterpret_cast<std::uint64_t*>(thread.shared())),
        sums_(bins_ + SampleShared::kBins),
        found_(sums_ + 2 * thread.count()) {}

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
  KVC_DEVICE float logit(int id) const { return penalised(params_, sequence_, id); }
  KVC_DEVICE float weight(int id) const {
    return relative_weight(largest_, logit(id), params_.temperature);
  }
  KVC_DEVICE std::uint32_t key(int id) const { return distance_key(largest_, logit(id)); }

  // The id of the largest logit, the lowest of equal ones; sets largest_.
  KVC_DEVICE std::int32_t largest_logit() {
    auto* values = reinterpret_cast<float*>(sums_);  // [threads]
    auto* ids = reinterpret_cast<std::int32_t*>(sums_ + thread_.count());
    float best = negative_infinity();
    std::int32_t id = -1;
    bool finite = true;
    for (int i = thread_.index(); i < params_.vocab_size; i += thread_.count()) {
      const float x = logit(i);
      finite = finite && x < INFINITY;
      if (id < 0 || x > best) {
        best = x;
        id = i;
      }
    }
    values[thread_.index()] = finite ? best : INFINITY;
    ids[thread_.index()] = id;
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

  KVC_DEVICE BlockSum prefix_sum(std::uint64_t own) {
    return block_prefix_sum(thread_, own, sums_);
  }

  // The lowest key up to which ids make up `target` of amount(id), and what those below it make up.
  struct Threshold {
    std::uint32_t key;
    std::uint64_t below;
  };
  template <class Amount>
  KVC_DEVICE Threshold find_threshold(std::uint64_t target, const Amount& amount) {
    constexpr int kBits = SampleShared::kDigitBits;
    Threshold result{0, 0};
    for (int shift = 32 - kBits, done = 0; done<32; shift = shift> kBits ? shift - kBits : 0) {
      const int bits = done + kBits <= 32 ? kBits : 32 - done;
      const int bins = 1 << bits;
      for (int i = thread_.index(); i < bins; i += thread_.count()) {
        bins_[i] = 0;
      }
      thread_.sync();
      for (int i = thread_.index(); i < params_.vocab_size; i += thread_.count()) {
        const std::uint32_t own = key(i);
        if (done == 0 || (own >> (32 - done)) == (result.key >> (32 - done))) {
          thread_.add_shared(bins_ + (own >> shift & static_cast<std::uint32_t>(bins - 1)),
                             amount(i));
        }
      }
      thread_.sync();
      find_bin(target, bins, result.below);
      result.key |= static_cast<std::uint32_t>(found_[0]) << shift;
      result.below = found_[1];
      thread_.sync();
      done += bits;
    }
    return result;
  }
  // found_ becomes the bin that `target` falls into, and what lies before it.
  KVC_DEVICE void find_bin(std::uint64_t target, int bins, std::uint64_t below) {
    const int each = (bins + thread_.count() - 1) / thread_.count();
    const int first = thread_.index() * each;
    const auto last = first + each < bins ? first + each : bins;
    std::uint64_t own = 0;
    for (int i = first; i < last; ++i) {
      own += bins_[i];
    }
    std::uint64_t before = below + prefix_sum(own).before;
    if (before < target && target <= before + own) {
      int bin = first;
      while (before + bins_[bin] < target) {
        before += bins_[bin++];
      }
      found_[0] = static_cast<std::uint64_t>(bin);
      found_[1] = before;
    }
    thread_.sync();
  }

  KVC_DEVICE std::uint64_t mass_up_to(int id, std::uint32_t last_key) const {
    return key(id) <= last_key ? probability_mass(weight(id)) : 0;
  }

  KVC_DEVICE std::int32_t draw() {
    std::uint32_t last_key = 0xFFFFFFFFu;
    if (params_.top_k > 0 && params_.top_k < params_.vocab_size) {
      last_key = find_threshold(static_cast<std::uint64_t>(params_.top_k), [](int) {
                   return std::uint64_t{1};
                 }).key;
    }
    std::uint64_t of_ties =
        ~std::uint64_t{0};  // mass that ids of last_key may add, by ascending id
    if (params_.top_p < 1) {
      std::uint64_t own = 0;
      for (int i = thread_.index(); i < params_.vocab_size; i += thread_.count()) {
        own += mass_up_to(i, last_key);
      }
      const std::uint64_t target = wanted_mass(params_.top_p, prefix_sum(own).total);
      const std::uint32_t top_k_key = last_key;
      const Threshold threshold =
          find_threshold(target, [&](int id) { return mass_up_to(id, top_k_key); });
      last_key = threshold.key;
      of_ties = target - threshold.below;
    }
    return draw_up_to(last_key, of_ties);
  }

  // Calls visit(id, mass) for ids first .. last - 1 that are kept, ascending.
  template <class Visit>
  KVC_DEVICE void visit_kept(int first, int last, std::uint32_t last_key, std::uint64_t tied,
                             std::uint64_t of_ties, const Visit& visit) const {
    for (int id = first; id < last; ++id) {
      const std::uint32_t own = key(id);
      if (own > last_key) {
        continue;
      }
      const float relative = weight(id);
      const std::uint64_t mass = probability_mass(relative);
      const bool too_late = own == last_key && tied >= of_ties;
      tied += own == last_key ? mass : 0;
      if (!too_late && relative >= params_.min_p) {
        visit(id, mass);
      }
    }
  }

  KVC_DEVICE std::int32_t draw_up_to(std::uint32_t last_key, std::uint64_t of_ties) {
    const int each = (params_.vocab_size + thread_.count() - 1) / thread_.count();
    const int end = params_.vocab_size,
              first = thread_.index() * each < end ? thread_.index() * each : end;
    const int last = first + each < end ? first + each : end;
    std::uint64_t own_ties = 0, own = 0;
    for (int id = first; id < last; ++id) {
      own_ties += key(id) == last_key ? probability_mass(weight(id)) : 0;
    }
    const std::uint64_t tied = prefix_sum(own_ties).before;
    visit_kept(first, last, last_key, tied, of_ties, [&](int, std::uint64_t mass) { own += mass; });
    const BlockSum prefix = prefix_sum(own);
    const std::uint64_t bits = random_bits(
        params_.seeds[sequence_], static_cast<std::uint32_t>(params_.positions[sequence_] + 1));
    const std::uint64_t drawn = scaled_bits(bits, prefix.total);
    if (prefix.before <= drawn && drawn < prefix.before + own) {
      std::uint64_t passed = prefix.before;
      std::int32_t token = kNoToken;
      visit_kept(first, last, last_key, tied, of_ties, [&](int id, std::uint64_t mass) {
        if (token == kNoToken && drawn < passed + mass) {
          token = id;
        }
        passed += mass;
      });
      found_[2] = static_cast<std::uint64_t>(token);
    }
    thread_.sync();
    return static_cast<std::int32_t>(found_[2]);
  }

  const SampleTokens& params_;
  Thread& thread_;
  int sequence_;
  std::uint64_t* bins_;   // [kBins]
  std::uint64_t* sums_;   // [2, threads]
  std::uint64_t* found_;  // [4]
  float largest_ = 0;
};

struct SampleTokensKernel : Kernel<SampleTokens, 1024, 1> {
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
