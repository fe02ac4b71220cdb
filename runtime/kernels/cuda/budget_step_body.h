// Grid: (KV head, sequence). The block attends for all query heads of the KV head over the slots and the new
// token, updates scores, then moves at most two tokens. All probabilities are in shared memory. A warp takes slots
// one after the other, its lanes pairs of channels, so that a key or value is read once for kHeads query heads.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/budget_step.h"
#include "runtime/kernels/cuda/device_numbers.h"
#include "runtime/kernels/cuda/device_softmax.h"

namespace kvc {

constexpr int kBudgetThreads = 256;

// How many slots of each kind hold tokens when n have come.
struct BudgetFill {
  int residual, context, ring;
};
KVC_HOST_DEVICE BudgetFill budget_fill(const BudgetLayout& layout, int n) {
  const auto least = [](int a, int b) { return a < b ? a : b; };
  BudgetFill fill;
  fill.ring = least(n, layout.num_ring);
  fill.context = least(n - fill.ring, layout.num_context);
  fill.residual = least(n - fill.ring - fill.context, layout.num_residual);
  return fill;
}
// Does slot `slot` hold a token?
KVC_HOST_DEVICE bool holds_token(const BudgetLayout& layout, const BudgetFill& fill, int slot) {
  const int in_context = slot - layout.num_residual, in_ring = in_context - layout.num_context;
  return in_ring >= 0      ? in_ring < fill.ring
         : in_context >= 0 ? in_context < fill.context
                           : slot < fill.residual;
}

// A slot and what it is chosen by.
struct Chosen {
  float value;
  int slot;
};
// The lower value; of equal ones the lower slot.
KVC_HOST_DEVICE Chosen lower(const Chosen& a, const Chosen& b) {
  const bool second = b.value < a.value || (b.value == a.value && b.slot < a.slot);
  return second ? b : a;
}
constexpr int kNoSlot = 0x7FFFFFFF;
KVC_HOST_DEVICE Chosen nothing_chosen() { return {INFINITY, kNoSlot}; }

// Mean of a slot's members and one more.
KVC_HOST_DEVICE float merged_number(float slot, float count, float number) {
  return (count * slot + number) / (count + 1);
}

// Query heads that share a read: a power of two.
KVC_HOST_DEVICE int heads_together(int heads) {
  return heads <= 1 ? 1 : heads <= 2 ? 2 : heads <= 4 ? 4 : 8;
}

// Shared memory: probabilities [heads of the KV head, slots + 1], reductions [2, threads], outputs of
// kHeads heads.
struct BudgetShared {
  static KVC_HOST_DEVICE int bytes(int heads, int slots, int head_dim, int threads) {
    return (heads * (slots + 1) + 2 * threads + heads_together(heads) * head_dim) *
           static_cast<int>(sizeof(float));
  }
};

template <class T, int kHeads, class Thread>
class BudgetStepBlock {
 public:
  KVC_DEVICE BudgetStepBlock(const BudgetStep& params, Thread& thread)
      : p_(params),
        thread_(thread),
        slots_(params.layout.slots()),
        heads_(params.num_heads / params.num_kv_heads),
        dim_(params.head_dim) {
    const int sequence = thread.block_y(), kv_head = thread.block_x();
    const std::int64_t head = static_cast<std::int64_t>(sequence) * p_.num_kv_heads + kv_head;
    n_ = p_.num_tokens[sequence];
    fill_ = budget_fill(p_.layout, n_);
    keys_ = static_cast<T*>(p_.keys) + head * slots_ * dim_;
    values_ = static_cast<T*>(p_.values) + head * slots_ * dim_;
    new_key_ = static_cast<const T*>(p_.new_key) + head * dim_;
    new_value_ = static_cast<const T*>(p_.new_value) + head * dim_;
    query_ = static_cast<const T*>(p_.query) +
             (static_cast<std::int64_t>(sequence) * p_.num_heads + kv_head * heads_) * dim_;
    output_ = static_cast<T*>(p_.output) + (query_ - static_cast<const T*>(p_.query));
    scores_ = p_.scores + head * slots_;
    counts_ = p_.counts + head * p_.layout.num_residual;
    weights_ = reinterpret_cast<float*>(thread.shared());
    reduction_ = weights_ + heads_ * (slots_ + 1);
    sums_ = reduction_ + 2 * thread.count();
  }

  KVC_DEVICE void run() {
    for (int first = 0; first < heads_; first += kHeads) {
      score_slots(first);
    }
    thread_.sync();
    for (int head = 0; head < heads_; ++head) {
      normalise(weights_ + head * (slots_ + 1));
    }
    for (int first = 0; first < heads_; first += kHeads) {
      write_output(first);
    }
    update_scores();
    thread_.sync();
    const int ring = p_.layout.num_residual + p_.layout.num_context;
    const int slot = ring + n_ % p_.layout.num_ring;
    if (n_ >= p_.layout.num_ring) {
      demote(slot);
    }
    store(slot, new_key_, new_value_, new_score());
  }

 private:
  // Rows a warp at a time, channels over its lanes.
  KVC_DEVICE float dot(const T* a, const T* b) {
    float sum = 0;
    for (int channel = thread_.lane(); channel < dim_; channel += 32) {
      sum += to_float(a[channel]) * to_float(b[channel]);
    }
    for (int lanes = 16; lanes >= 1; lanes /= 2) {
      sum += thread_.shuffle_xor(sum, lanes);
    }
    return sum;
  }

  // Pairs of channels of a lane: lane, lane + 32, ...
  static constexpr int kPairs = 4;
  struct Pairs {
    float x[kHeads][kPairs][2];
  };
  KVC_DEVICE bool has_pair(int i) const { return 2 * (thread_.lane() + 32 * i) < dim_; }
  KVC_DEVICE std::uint32_t pair_of(const T* row, int i) const {
    return reinterpret_cast<const std::uint32_t*>(row)[thread_.lane() + 32 * i];
  }
  KVC_DEVICE bool is_held(int slot) const {
    return slot == slots_ || holds_token(p_.layout, fill_, slot);
  }

  // Query heads first .. first + kHeads - 1.
  KVC_DEVICE void score_slots(int first) {
    Pairs query;
    KVC_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      KVC_UNROLL
      for (int i = 0; i < kPairs; ++i) {
        const bool there = first + head < heads_ && has_pair(i);
        const std::uint32_t pair =
            there ? pair_of(query_ + static_cast<std::int64_t>(first + head) * dim_, i) : 0;
        query.x[head][i][0] = low_of_pair<T>(pair);
        query.x[head][i][1] = high_of_pair<T>(pair);
      }
    }
    for (int slot = thread_.warp(); slot <= slots_; slot += thread_.count() / 32) {
      score_slot(first, slot, query);
    }
  }

  KVC_DEVICE void score_slot(int first, int slot, const Pairs& query) {
    const bool held = is_held(slot);
    const T* key = slot == slots_ ? new_key_ : keys_ + static_cast<std::int64_t>(slot) * dim_;
    float sums[kHeads] = {};
    if (held) {
      KVC_UNROLL
      for (int i = 0; i < kPairs; ++i) {
        if (has_pair(i)) {
          const std::uint32_t pair = pair_of(key, i);
          KVC_UNROLL
          for (int head = 0; head < kHeads; ++head) {
            sums[head] += query.x[head][i][0] * low_of_pair<T>(pair) +
                          query.x[head][i][1] * high_of_pair<T>(pair);
          }
        }
      }
    }
    const float added =
        held && slot < p_.layout.num_residual ? p_.alpha * logf(counts_[slot]) : 0.0f;
    KVC_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      for (int lanes = 16; lanes >= 1; lanes /= 2) {
        sums[head] += thread_.shuffle_xor(sums[head], lanes);
      }
      if (thread_.lane() == 0 && first + head < heads_) {
        weights_[(first + head) * (slots_ + 1) + slot] =
            held ? sums[head] * p_.scale + added : negative_infinity();
      }
    }
  }

  template <class Join>
  KVC_DEVICE float reduce(float own, const Join& join) {
    reduction_[thread_.index()] = own;
    thread_.sync();
    for (int half = thread_.count() / 2; half >= 1; half /= 2) {
      if (thread_.index() < half) {
        reduction_[thread_.index()] =
            join(reduction_[thread_.index()], reduction_[thread_.index() + half]);
      }
      thread_.sync();
    }
    const float all = reduction_[0];
    thread_.sync();
    return all;
  }

  // Scores to probabilities.
  KVC_DEVICE void normalise(float* weights) {
    float max = negative_infinity(), sum = 0;
    for (int slot = thread_.index(); slot <= slots_; slot += thread_.count()) {
      max = weights[slot] > max ? weights[slot] : max;
    }
    max = reduce(max, [](float a, float b) { return a > b ? a : b; });
    for (int slot = thread_.index(); slot <= slots_; slot += thread_.count()) {
      weights[slot] = exp_below(weights[slot], max);
      sum += weights[slot];
    }
    sum = reduce(sum, [](float a, float b) { return a + b; });
    for (int slot = thread_.index(); slot <= slots_; slot += thread_.count()) {
      weights[slot] /= sum;
    }
    thread_.sync();
  }

  // Warps add their sums in order, so that equal inputs give equal bits.
  KVC_DEVICE void write_output(int first) {
    Pairs sums = {};
    for (int slot = thread_.warp(); slot <= slots_; slot += thread_.count() / 32) {
      if (is_held(slot)) {
        add_value(first, slot, sums);
      }
    }
    for (int i = thread_.index(); i < kHeads * dim_; i += thread_.count()) {
      sums_[i] = 0;
    }
    thread_.sync();
    for (int warp = 0; warp < thread_.count() / 32; ++warp) {
      if (warp == thread_.warp()) {
        add_to_block(sums);
      }
      thread_.sync();
    }
    for (int i = thread_.index(); i < kHeads * dim_; i += thread_.count()) {
      if (first + i / dim_ < heads_) {
        output_[first * dim_ + i] = narrow<T>(sums_[i]);
      }
    }
    thread_.sync();
  }

  KVC_DEVICE void add_value(int first, int slot, Pairs& sums) {
    const T* value = slot == slots_ ? new_value_ : values_ + static_cast<std::int64_t>(slot) * dim_;
    float weights[kHeads];
    KVC_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      weights[head] = first + head < heads_ ? weights_[(first + head) * (slots_ + 1) + slot] : 0.0f;
    }
    KVC_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      if (has_pair(i)) {
        const std::uint32_t pair = pair_of(value, i);
        KVC_UNROLL
        for (int head = 0; head < kHeads; ++head) {
          sums.x[head][i][0] += weights[head] * low_of_pair<T>(pair);
          sums.x[head][i][1] += weights[head] * high_of_pair<T>(pair);
        }
      }
    }
  }

  KVC_DEVICE void add_to_block(const Pairs& sums) {
    KVC_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      KVC_UNROLL
      for (int i = 0; i < kPairs; ++i) {
        if (has_pair(i)) {
          float* to = sums_ + head * dim_ + 2 * (thread_.lane() + 32 * i);
          to[0] += sums.x[head][i][0];
          to[1] += sums.x[head][i][1];
        }
      }
    }
  }

  KVC_DEVICE float probability(int slot) const {
    float sum = 0;
    for (int head = 0; head < heads_; ++head) {
      sum += weights_[head * (slots_ + 1) + slot];
    }
    return sum;
  }
  KVC_DEVICE float new_score() const { return probability(slots_); }

  KVC_DEVICE void update_scores() {
    for (int slot = thread_.index(); slot < slots_; slot += thread_.count()) {
      if (holds_token(p_.layout, fill_, slot)) {
        scores_[slot] = p_.decay * scores_[slot] + probability(slot);
      }
    }
  }

  KVC_DEVICE void store(int slot, const T* key, const T* value, float score) {
    for (int channel = thread_.index(); channel < dim_; channel += thread_.count()) {
      keys_[static_cast<std::int64_t>(slot) * dim_ + channel] = key[channel];
      values_[static_cast<std::int64_t>(slot) * dim_ + channel] = value[channel];
    }
    if (thread_.index() == 0) {
      scores_[slot] = score;
    }
    thread_.sync();
  }
  KVC_DEVICE void move(int from, int to) {
    const float score = scores_[from];
    thread_.sync();
    store(to, keys_ + static_cast<std::int64_t>(from) * dim_,
          values_ + static_cast<std::int64_t>(from) * dim_, score);
  }

  // The same in all threads.
  KVC_DEVICE Chosen lowest_of_block(const Chosen& own) {
    auto* slots = reinterpret_cast<std::int32_t*>(reduction_ + thread_.count());
    reduction_[thread_.index()] = own.value;
    slots[thread_.index()] = own.slot;
    thread_.sync();
    for (int half = thread_.count() / 2; half >= 1; half /= 2) {
      const int i = thread_.index();
      if (i < half) {
        const Chosen joined =
            lower({reduction_[i], slots[i]}, {reduction_[i + half], slots[i + half]});
        reduction_[i] = joined.value;
        slots[i] = joined.slot;
      }
      thread_.sync();
    }
    const Chosen all = {reduction_[0], slots[0]};
    thread_.sync();
    return all;
  }

  // The ring's oldest token, in slot `oldest`, joins the context, from where another may have to leave.
  KVC_DEVICE void demote(int oldest) {
    const int context = p_.layout.num_residual;
    if (fill_.context < p_.layout.num_context) {
      return move(oldest, context + fill_.context);
    }
    Chosen own = nothing_chosen();
    for (int i = thread_.index(); i < p_.layout.num_context; i += thread_.count()) {
      own = lower(own, {scores_[context + i], context + i});
    }
    const Chosen old = lowest_of_block(own);
    const bool newcomer_leaves =
        old.slot == kNoSlot || (p_.demotion == Demotion::kPaper && scores_[oldest] < old.value);
    const int victim = newcomer_leaves ? oldest : old.slot;
    leave(victim);
    if (!newcomer_leaves) {
      move(oldest, victim);
    }
  }

  // A token goes into a free residual slot, or into the one with the key of the largest product with its own;
  // of equal ones the first. Without residual slots it is gone.
  KVC_DEVICE void leave(int victim) {
    if (p_.layout.num_residual == 0) {
      return;
    }
    if (fill_.residual < p_.layout.num_residual) {
      if (thread_.index() == 0) {
        counts_[fill_.residual] = 1;
      }
      return move(victim, fill_.residual);
    }
    const T* key = keys_ + static_cast<std::int64_t>(victim) * dim_;
    Chosen own = nothing_chosen();
    for (int slot = thread_.warp(); slot < p_.layout.num_residual; slot += thread_.count() / 32) {
      own = lower(own, {-dot(keys_ + static_cast<std::int64_t>(slot) * dim_, key), slot});
    }
    merge(victim, lowest_of_block(own).slot);
  }

  KVC_DEVICE void merge(int from, int to) {
    const float count = counts_[to], score = scores_[from];
    const float larger = score > scores_[to] ? score : scores_[to];
    thread_.sync();
    const auto mean = [&](T* rows, int channel) {
      T& slot = rows[static_cast<std::int64_t>(to) * dim_ + channel];
      slot = narrow<T>(merged_number(
          to_float(slot), count, to_float(rows[static_cast<std::int64_t>(from) * dim_ + channel])));
    };
    for (int channel = thread_.index(); channel < dim_; channel += thread_.count()) {
      mean(keys_, channel);
      mean(values_, channel);
    }
    if (thread_.index() == 0) {
      counts_[to] = count + 1;
      scores_[to] = larger;
    }
    thread_.sync();
  }

  const BudgetStep& p_;
  Thread& thread_;
  int slots_, heads_, dim_, n_;
  BudgetFill fill_;
  T *keys_, *values_, *output_;
  const T *new_key_, *new_value_, *query_;
  float *scores_, *counts_, *weights_, *reduction_, *sums_;
};

}  // namespace kvc
