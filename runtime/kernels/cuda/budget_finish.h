// What follows from all parts of a KV head's attention: they are combined in their order, scores move on, then at most two
// tokens change places. One block per (KV head, sequence).
#pragma once

#include "runtime/kernels/cuda/budget_merge.h"
#include "runtime/kernels/cuda/budget_places.h"

namespace kvc {

// Shared memory: max and sum of every query head of the KV head, then reductions of Chosen.
struct BudgetFinishShared {
  static KVC_HOST_DEVICE int bytes(int heads, int threads) {
    return 2 * heads * static_cast<int>(sizeof(float)) + threads * static_cast<int>(sizeof(Chosen));
  }
};

template <class T, class Thread>
class BudgetFinish {
 public:
  KVC_DEVICE BudgetFinish(const BudgetStep& params, Thread& thread)
      : p_(params),
        thread_(thread),
        cache_(params.caches[thread.block_y()]),
        layout_(cache_.layout),
        sequence_(thread.block_y()),
        heads_(params.num_heads / params.num_kv_heads) {
    n_ = p_.num_tokens[sequence_];
    fill_ = budget_fill(layout_, n_);
    first_head_ = thread.block_x() * heads_;
    rows_ = {cache_, thread.block_x(), p_.head_dim, p_.context};
    totals_ = reinterpret_cast<SoftmaxState*>(thread.shared());
    chosen_ = reinterpret_cast<Chosen*>(totals_ + heads_);
  }

  KVC_DEVICE void run() {
    combine_parts();
    thread_.sync();
    write_output();
    Chosen lowest = nothing_chosen();
    float score = 0;  // of the new token
    if (cache_.scores != nullptr) {
      lowest = update_scores();
      score = probability(fill_.rows);
    }
    thread_.sync();
    int to = n_;
    if (fill_.is_laid_out) {
      to = ring_row(layout_, n_);
      if (layout_.num_context > 0) {
        make_room(to, lowest_of_block(lowest));
      }
    }
    take_in(to, score);
  }

 private:
  KVC_DEVICE std::int64_t part_row(int part, int head) const {
    return p_.partials.row(sequence_, part, p_.num_heads, first_head_ + head);
  }

  // A warp takes a head, its lanes parts.
  KVC_DEVICE void combine_parts() {
    for (int head = thread_.warp(); head < heads_; head += thread_.count() / 32) {
      SoftmaxState total;
      for (int part = thread_.lane(); part < p_.partials.num_parts; part += 32) {
        const std::int64_t row = part_row(part, head);
        combine_softmax(total, {p_.partials.max[row], p_.partials.sum[row]});
      }
      for (int lanes = 16; lanes >= 1; lanes /= 2) {
        SoftmaxState other;
        other.max = thread_.shuffle_xor(total.max, lanes);
        other.sum = thread_.shuffle_xor(total.sum, lanes);
        combine_softmax(total, other);
      }
      if (thread_.lane() == 0) {
        totals_[head] = total;
      }
    }
  }

  KVC_DEVICE void write_output() const {
    for (int i = thread_.index(); i < heads_ * p_.head_dim; i += thread_.count()) {
      const int head = i / p_.head_dim, channel = i % p_.head_dim;
      float output = 0;
      for (int part = 0; part < p_.partials.num_parts; ++part) {
        const std::int64_t row = part_row(part, head);
        const float weight = exp_below(p_.partials.max[row], totals_[head].max);
        output += weight * p_.partials.output[row * p_.head_dim + channel];
      }
      const std::int64_t to =
          (static_cast<std::int64_t>(sequence_) * p_.num_heads + first_head_ + head) * p_.head_dim;
      static_cast<T*>(p_.output)[to + channel] = narrow<T>(output / totals_[head].sum);
    }
  }

  // That attention gives a row, summed over the query heads of the KV head.
  KVC_DEVICE float probability(int row) const {
    float sum = 0;
    for (int head = 0; head < heads_; ++head) {
      const std::int64_t query =
          static_cast<std::int64_t>(sequence_) * p_.num_heads + first_head_ + head;
      sum += exp_below(p_.products[query * p_.products_stride + row], totals_[head].max) /
             totals_[head].sum;
    }
    return sum;
  }

  // The lowest of the context that this thread has met.
  KVC_DEVICE Chosen update_scores() {
    const int first = layout_.num_sinks, last = first + layout_.num_context;
    Chosen lowest = nothing_chosen();
    for (int row = thread_.index(); row < fill_.rows; row += thread_.count()) {
      const float score = p_.decay * rows_.score(row) + probability(row);
      rows_.score(row) = score;
      if (row >= first && row < last) {
        lowest = lower(lowest, {score, rows_.position(row), row});
      }
    }
    return lowest;
  }

  // The same in all threads.
  KVC_DEVICE Chosen lowest_of_block(const Chosen& own) {
    chosen_[thread_.index()] = own;
    thread_.sync();
    for (int half = thread_.count() / 2; half >= 1; half /= 2) {
      const int i = thread_.index();
      if (i < half) {
        chosen_[i] = lower(chosen_[i], chosen_[i + half]);
      }
      thread_.sync();
    }
    const Chosen all = chosen_[0];
    thread_.sync();
    return all;
  }

  // The ring's oldest token joins the context, from where another may have to leave.
  KVC_DEVICE void make_room(int oldest, const Chosen& lowest) {
    const bool newcomer_leaves =
        p_.demotion == Demotion::kPaper && rows_.score(oldest) < lowest.value;
    const int leaving = newcomer_leaves ? oldest : lowest.row;
    if (layout_.num_residual > 0) {
      merge(leaving);
    }
    if (leaving != oldest) {
      rows_.template move<T>(oldest, leaving, thread_);
    }
  }

  // A token goes into the first free residual slot, or into the one with the key of the largest product with its own;
  // of equal ones the first.
  KVC_DEVICE void merge(int leaving) {
    Chosen own = nothing_chosen();
    for (int slot = thread_.warp(); slot < layout_.num_residual; slot += thread_.count() / 32) {
      const float likeness = rows_.template likeness<T>(slot, leaving, thread_);
      own = lower(own, {rows_.count(slot) > 0 ? -likeness : negative_infinity(), slot, slot});
    }
    rows_.template merge<T>(leaving, lowest_of_block(own).row, thread_);
  }

  KVC_DEVICE void take_in(int row, float score) {
    const std::int64_t newest =
        (static_cast<std::int64_t>(sequence_) * p_.num_kv_heads + thread_.block_x()) * p_.head_dim;
    rows_.template store<T>(row, static_cast<const T*>(p_.new_key) + newest,
                            static_cast<const T*>(p_.new_value) + newest, thread_);
    if (thread_.index() == 0 && cache_.scores != nullptr) {
      rows_.score(row) = score;
      rows_.position(row) = n_;
    }
  }

  const BudgetStep& p_;
  Thread& thread_;
  const BudgetCache cache_;
  const BudgetLayout layout_;
  BudgetFill fill_;
  int sequence_, heads_, n_, first_head_;
  BudgetRows rows_;
  SoftmaxState* totals_;
  Chosen* chosen_;
};

}  // namespace kvc
