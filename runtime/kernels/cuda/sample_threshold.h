// The distance from the largest logit up to which ids make up a target: found digit by digit, in histograms of the
// digits. Integers are summed, so that the order of threads changes nothing.
#pragma once

#include <cstdint>

#include "runtime/kernels/cuda/sample_ids.h"

namespace kvc {

template <class Thread>
class SampleThreshold {
 public:
  // memory: SampleShared::of_threshold(threads) numbers
  KVC_DEVICE SampleThreshold(Thread& thread, std::uint64_t* memory)
      : thread_(thread),
        bins_(memory),
        own_(bins_ + kBins),
        found_(own_ + kFewDigits * thread.count()) {}

  // The lowest key up to which ids make up `target` of their amounts, and what those of this key have to add.
  struct Threshold {
    std::uint32_t key;
    std::uint64_t of_key;
  };
  // amount(id, logit), key(logit); target(sum of all amounts), at least 1 and at most that.
  template <class Key, class Amount, class Target>
  KVC_DEVICE Threshold find(SampleIds<Thread>& ids, const Key& key, const Amount& amount,
                            const Target& target) {
    std::uint32_t found = 0;
    std::uint64_t wanted = 0, below = 0;
    for (int above = 32; above > 0;) {  // lowest bit of the digit before
      const int shift = above > kDigitBits ? above - kDigitBits : 0, bins = 1 << (above - shift);
      for (int i = thread_.index(); i < bins; i += thread_.count()) {
        bins_[i] = 0;
      }
      thread_.sync();
      if (above == 32) {
        add_first_digits(ids, key, amount);
      } else {
        add_digits(ids, key, amount, shift, above, found);
      }
      thread_.sync();
      const Range range = bins_of_thread(bins);
      const BlockSum sum = ids.prefix_sum(sum_of_bins(range));
      wanted = above == 32 ? target(sum.total) : wanted;
      find_bin(range, below + sum.before, wanted);
      found |= static_cast<std::uint32_t>(found_[0]) << shift;
      below = found_[1];
      thread_.sync();
      above = shift;
    }
    return {found, wanted - below};
  }

 private:
  static constexpr int kDigitBits = SampleShared::kDigitBits, kBins = 1 << kDigitBits;
  // First digits are multiples of 2 of a logit's distance. Most ids have one of so few, and each thread has sums of its
  // own for them: threads that add to the same one would wait for one another.
  static constexpr int kFewDigits = SampleShared::kFewDigits;

  // Adds to shared bins; neighbours of a thread that fall into one bin at once.
  struct Run {
    KVC_DEVICE void add(Thread& thread, std::uint64_t* bins, std::uint32_t to,
                        std::uint64_t amount) {
      if (to != bin) {
        flush(thread, bins);
        bin = to;
      }
      sum += amount;
    }
    KVC_DEVICE void flush(Thread& thread, std::uint64_t* bins) {
      if (sum != 0) {
        thread.add_shared(bins + bin, sum);
      }
      sum = 0;
    }
    std::uint32_t bin = 0;
    std::uint64_t sum = 0;
  };

  template <class Key, class Amount>
  KVC_DEVICE void add_first_digits(const SampleIds<Thread>& ids, const Key& key,
                                   const Amount& amount) {
    std::uint64_t* const own = own_ + thread_.index();  // [kFewDigits] every `threads` numbers
    for (int i = 0; i < kFewDigits; ++i) {
      own[i * thread_.count()] = 0;
    }
    Run run;
    ids.visit_all([&](int id, float x) {
      const std::uint32_t bin = key(x) >> (32 - kDigitBits);
      if (bin < kFewDigits) {
        own[static_cast<int>(bin) * thread_.count()] += amount(id, x);
      } else {
        run.add(thread_, bins_, bin, amount(id, x));
      }
    });
    run.flush(thread_, bins_);
    thread_.sync();
    for (int bin = thread_.warp(); bin < kFewDigits; bin += thread_.count() / 32) {
      std::uint64_t sum = 0;
      for (int i = thread_.lane(); i < thread_.count(); i += 32) {
        sum += own_[bin * thread_.count() + i];
      }
      thread_.add_shared(bins_ + bin, sum);
    }
  }
  // Bits shift .. above - 1 of keys that have those of `found` above.
  template <class Key, class Amount>
  KVC_DEVICE void add_digits(const SampleIds<Thread>& ids, const Key& key, const Amount& amount,
                             int shift, int above, std::uint32_t found) {
    const std::uint32_t digit = (1u << (above - shift)) - 1;
    Run run;
    ids.visit_all([&](int id, float x) {
      const std::uint32_t own = key(x);
      if (own >> above == found >> above) {
        run.add(thread_, bins_, own >> shift & digit, amount(id, x));
      }
    });
    run.flush(thread_, bins_);
  }

  struct Range {
    int first, last;
  };
  KVC_DEVICE Range bins_of_thread(int bins) const {
    const int each = (bins + thread_.count() - 1) / thread_.count();
    const int first = thread_.index() * each, last = first + each;
    return {first < bins ? first : bins, last < bins ? last : bins};
  }
  KVC_DEVICE std::uint64_t sum_of_bins(Range range) const {
    std::uint64_t sum = 0;
    for (int i = range.first; i < range.last; ++i) {
      sum += bins_[i];
    }
    return sum;
  }
  // found_ becomes the bin that `target` falls into, and what lies before it. before: what lies before the thread's.
  KVC_DEVICE void find_bin(Range range, std::uint64_t before, std::uint64_t target) {
    for (int bin = range.first; bin < range.last; ++bin) {
      const std::uint64_t up_to = before + bins_[bin];
      if (before < target && target <= up_to) {
        found_[0] = static_cast<std::uint64_t>(bin);
        found_[1] = before;
      }
      before = up_to;
    }
    thread_.sync();
  }

  Thread& thread_;
  std::uint64_t* bins_;   // [kBins]
  std::uint64_t* own_;    // [kFewDigits, threads]
  std::uint64_t* found_;  // [2]
};

}  // namespace kvc
