// What a KV head's rows are ranked by: each block moves the scores of its own rows on and finds the lowest of these.
#pragma once

#include "runtime/kernels/cuda/budget_merge.h"
#include "runtime/kernels/cuda/budget_part.h"

namespace kvc {

KVC_DEVICE BudgetRows budget_rows(const BudgetPart& part) {
  return {part.cache, part.kv_head, part.params.head_dim, part.params.context};
}

// Shared memory: max and sum of every query head of the KV head, then reductions of Chosen.
struct BudgetScoresShared {
  static KVC_HOST_DEVICE int totals_bytes(int heads) { return (heads + 1) / 2 * 16; }
  static KVC_HOST_DEVICE int bytes(int heads, int threads) {
    return totals_bytes(heads) + (threads / 32 * static_cast<int>(sizeof(Chosen)) + 15) / 16 * 16;
  }
};

// All threads of a block call what is not const.
template <class Thread>
class BudgetScores {
 public:
  KVC_DEVICE BudgetScores(const BudgetPart& part, const BudgetRows& rows, Thread& thread)
      : part_(part),
        rows_(rows),
        thread_(thread),
        totals_(reinterpret_cast<SoftmaxState*>(thread.shared())),
        chosen_(reinterpret_cast<Chosen*>(thread.shared() +
                                          BudgetScoresShared::totals_bytes(part.heads))) {}

  KVC_DEVICE bool there_are() const { return rows_.cache.scores != nullptr; }

  // Before attention: what update() reads.
  KVC_DEVICE void prefetch() const {
    if (!there_are()) {
      return;
    }
    const int last =
        part_.range.last < part_.tiles.newest() ? part_.range.last : part_.tiles.newest();
    for (int tile = part_.range.first + thread_.index(); tile < last; tile += thread_.count()) {
      const int row = part_.tiles.row(tile, 0);
      thread_.prefetch(&rows_.score(row));
      thread_.prefetch(&rows_.position(row));
    }
  }

  // Softmaxes of all parts become totals. A warp takes a head, its lanes parts.
  KVC_DEVICE void combine_parts() {
    for (int head = thread_.warp(); head < part_.heads; head += thread_.count() / 32) {
      SoftmaxState total;
      for (int part = thread_.lane(); part < part_.parts; part += 32) {
        const std::int64_t row = part_.partial_row(part, head);
        combine_softmax(total, {part_.params.partials.max[row], part_.params.partials.sum[row]});
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
    thread_.sync();
  }
  // That of a query head, once they are combined.
  KVC_DEVICE const SoftmaxState& total(int head) const { return totals_[head]; }

  // probabilities[i]: that attention gives rows[i], summed over the query heads of the KV head; 0 for row -1.
  template <int kRows>
  KVC_DEVICE void add_probabilities(const int (&rows)[kRows], float (&probabilities)[kRows]) const {
    for (int first = 0; first < part_.heads; first += kHeadsAtOnce) {
      float products[kHeadsAtOnce][kRows];
      KVC_UNROLL
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        KVC_UNROLL
        for (int i = 0; i < kRows; ++i) {
          products[h][i] =
              rows[i] >= 0 && first + h < part_.heads
                  ? part_.params
                        .products[part_.query_row(first + h) * part_.params.products_stride +
                                  rows[i]]
                  : negative_infinity();
        }
      }
      KVC_UNROLL
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        const SoftmaxState total = totals_[first + h < part_.heads ? first + h : first];
        KVC_UNROLL
        for (int i = 0; i < kRows; ++i) {
          probabilities[i] += exp_below(products[h][i], total.max) / total.sum;
        }
      }
    }
  }

  // Scores of the part's rows. Returns the lowest of the context that this thread has met.
  KVC_DEVICE Chosen update() {
    const int first = rows_.cache.layout.num_sinks, last = first + rows_.cache.layout.num_context;
    const int step = kRowsAtOnce * thread_.count();
    Chosen lowest = nothing_chosen();
    for (int at = part_.range.first * kTileRows; at < part_.range.last * kTileRows; at += step) {
      int rows[kRowsAtOnce], positions[kRowsAtOnce];
      float scores[kRowsAtOnce], probabilities[kRowsAtOnce] = {};
      KVC_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int one = at + i * thread_.count() + thread_.index();
        const int row = one < part_.range.last * kTileRows
                            ? part_.tiles.row(one / kTileRows, one % kTileRows)
                            : -1;
        rows[i] = row < part_.fill.rows ? row : -1;  // not the new token
        scores[i] = rows[i] >= 0 ? rows_.score(rows[i]) : 0.0f;
        positions[i] = rows[i] >= 0 ? rows_.position(rows[i]) : 0;
      }
      add_probabilities(rows, probabilities);
      KVC_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (rows[i] < 0) {
          continue;
        }
        const float score = part_.params.decay * scores[i] + probabilities[i];
        rows_.score(rows[i]) = score;
        if (rows[i] >= first && rows[i] < last) {
          lowest = lower(lowest, {score, positions[i], rows[i]});
        }
      }
    }
    return lowest;
  }

  // The same in all threads.
  KVC_DEVICE Chosen lowest_of_block(const Chosen& own) {
    Chosen lowest = own;
    KVC_UNROLL
    for (int lanes = 16; lanes >= 1; lanes /= 2) {
      lowest =
          lower(lowest, {thread_.shuffle_xor(lowest.value, lanes),
                         of_other_lane(lowest.position, lanes), of_other_lane(lowest.row, lanes)});
    }
    if (thread_.lane() == 0) {
      chosen_[thread_.warp()] = lowest;
    }
    thread_.sync();
    lowest = chosen_[0];
    for (int warp = 1; warp < thread_.count() / 32; ++warp) {
      lowest = lower(lowest, chosen_[warp]);
    }
    thread_.sync();
    return lowest;
  }

 private:
  static constexpr int kRowsAtOnce = 8, kHeadsAtOnce = 4;  // whose loads are under way together

  KVC_DEVICE int of_other_lane(int x, int lanes) const {
    const float bits = float_of_bits(static_cast<std::uint32_t>(x));
    return static_cast<int>(float_bits(thread_.shuffle_xor(bits, lanes)));
  }

  const BudgetPart& part_;
  const BudgetRows& rows_;
  Thread& thread_;
  SoftmaxState* totals_;  // [heads]
  Chosen* chosen_;        // [warps]
};

}  // namespace kvc
