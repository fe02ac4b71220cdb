// A sequence's logits, as a block's threads go over the ids of a vocabulary; and where, by ascending id, a sum of theirs
// comes to a target.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/kernel.h"
#include "runtime/kernels/cuda/sample_arithmetic.h"

namespace kvc {

// 64-bit numbers in a block's shared memory.
struct SampleShared {
  static constexpr int kMostWarps = 32;
  static constexpr int kDigitBits = 11;
  static constexpr int kFewDigits = 16;  // that each thread sums by itself
  static KVC_HOST_DEVICE int of_ids(int threads) { return 2 * threads + kMostWarps + 1; }
  static KVC_HOST_DEVICE int of_threshold(int threads) {
    return (1 << kDigitBits) + kFewDigits * threads + 2;
  }
  static KVC_HOST_DEVICE int bytes(int threads) {
    return 8 * (of_ids(threads) + of_threshold(threads));
  }
};

template <class Thread>
class SampleIds {
 public:
  // memory: SampleShared::of_ids(threads) numbers
  KVC_DEVICE SampleIds(const SampleTokens& params, Thread& thread, std::uint64_t* memory)
      : params_(params),
        thread_(thread),
        sequence_(thread.block_x()),
        sums_(memory),
        starts_(memory + 2 * thread.count()),
        found_(starts_ + SampleShared::kMostWarps) {}

  // visit(id, logit) of the vocabulary's ids, shared by the block's threads. kAtOnce: loads of a thread that are under way
  // together, an even number.
  template <int kAtOnce = 8, class Visit>
  KVC_DEVICE void visit_all(const Visit& visit) const {
    visit_some<kAtOnce>(thread_.index(), params_.vocab_size, thread_.count(), visit);
  }

  // For every thread's number: the sum of those of lower threads, and of all.
  KVC_DEVICE BlockSum prefix_sum(std::uint64_t own) {
    return block_prefix_sum(thread_, own, sums_);
  }

  // The sum of amount(id, logit) of all ids.
  template <class Amount>
  KVC_DEVICE std::uint64_t add_amounts(const Amount& amount) {
    const Range ids = ids_of_warp(thread_.warp());
    std::uint64_t own = 0;
    visit_some(ids.first + thread_.lane(), ids.last, 32,
               [&](int id, float x) { own += amount(id, x); });
    const BlockSum sum = prefix_sum(own);
    if (thread_.lane() == 0) {
      starts_[thread_.warp()] = sum.before;
    }
    thread_.sync();
    return sum.total;
  }
  // Behind add_amounts(amount): the id at which the sum, by ascending id, exceeds `target`, which is below all of it.
  template <class Amount>
  KVC_DEVICE std::int32_t id_at(std::uint64_t target, const Amount& amount) {
    int warp = 0;
    while (warp + 1 < thread_.count() / 32 && starts_[warp + 1] <= target) {
      ++warp;
    }
    const Range all = ids_of_warp(warp), ids = share(all, thread_.count(), thread_.index(), 1);
    std::uint64_t own = 0;
    visit_some(ids.first, ids.last, 1, [&](int id, float x) { own += amount(id, x); });
    std::uint64_t passed = starts_[warp] + prefix_sum(own).before;
    if (passed <= target && target < passed + own) {
      std::int32_t found = kNoToken;
      visit_some(ids.first, ids.last, 1, [&](int id, float x) {
        passed += amount(id, x);
        found = found == kNoToken && target < passed ? id : found;
      });
      *found_ = static_cast<std::uint64_t>(found);
    }
    thread_.sync();
    return static_cast<std::int32_t>(*found_);
  }

 private:
  // How many of the loads under way are visited in one turn of a loop: few, so that the code is short.
  static constexpr int kVisits = 2;

  struct Range {
    int first, last;
  };
  // One of `parts` shares of ids, in whole `unit`s; the last ones are shorter or empty.
  static KVC_DEVICE Range share(Range ids, int parts, int part, int unit) {
    const int each = (ids.last - ids.first + parts * unit - 1) / (parts * unit) * unit;
    const int first = ids.first + part * each, last = first + each;
    return {first < ids.last ? first : ids.last, last < ids.last ? last : ids.last};
  }
  KVC_DEVICE Range ids_of_warp(int warp) const {
    return share({0, params_.vocab_size}, thread_.count() / 32, warp, 32);
  }

  // visit(id, logit) of ids first, first + step, .. below last.
  template <int kAtOnce = 8, class Visit>
  KVC_DEVICE void visit_some(int first, int last, int step, const Visit& visit) const {
    const std::int64_t words = (params_.vocab_size + 31) / 32;
    const float* logits =
        params_.logits + static_cast<std::int64_t>(sequence_) * params_.vocab_size;
    const std::uint32_t* seen =
        params_.seen == nullptr ? nullptr : params_.seen + sequence_ * words;
    for (int from = first; from < last; from += kAtOnce * step) {
      float x[kAtOnce];
      std::uint32_t of_text[kAtOnce] = {};
      KVC_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        x[i] = from + i * step < last ? logits[from + i * step] : 0.0f;
      }
      if (seen != nullptr) {
        KVC_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          of_text[i] = from + i * step < last ? seen[(from + i * step) / 32] : 0;
        }
      }
      KVC_NO_UNROLL
      for (int visited = 0; visited < kAtOnce; visited += kVisits) {
        KVC_UNROLL
        for (int i = 0; i < kVisits; ++i) {
          const int id = from + (visited + i) * step;
          if (id < last) {
            visit(id, penalised(params_, x[i], of_text[i], id));
          }
        }
        KVC_UNROLL
        for (int i = 0; i + kVisits < kAtOnce; ++i) {
          x[i] = x[i + kVisits];
          of_text[i] = of_text[i + kVisits];
        }
      }
    }
  }

  const SampleTokens& params_;
  Thread& thread_;
  int sequence_;
  std::uint64_t* sums_;    // [2, threads]
  std::uint64_t* starts_;  // [warps] what the ids before a warp's add up to
  std::uint64_t* found_;   // [1]
};

}  // namespace kvc
