// What follows from all parts of a KV head's attention. Every part's block takes its share: channels of the output, the scores
// of its own rows and the lowest of these. The last of them to be done lets at most two tokens change places.
#pragma once

#include "runtime/kernels/cuda/budget_scores.h"

namespace kvc {

// Shared memory: of scores; then key and value of the token that leaves and of the slot that it goes to, in float32, of the
// ring's oldest token and of the new one as they are; whether the block is the last.
struct BudgetFinishShared {
  static KVC_HOST_DEVICE int bytes(int heads, int head_dim, int threads) {
    return BudgetScoresShared::bytes(heads, threads) + 2 * head_dim * (4 + 4 + 2 + 2) + 16;
  }
};

template <class T, class Thread>
class BudgetFinish {
 public:
  KVC_DEVICE BudgetFinish(const BudgetPart& part, const BudgetRows& rows, Thread& thread)
      : p_(part.params),
        part_(part),
        thread_(thread),
        n_(part.params.num_tokens[part.sequence]),
        rows_(rows),
        scores_(part, rows, thread) {
    leaving_ = reinterpret_cast<float*>(thread.shared() +
                                        BudgetScoresShared::bytes(part.heads, thread.count()));
    slot_ = leaving_ + 2 * p_.head_dim;
    oldest_ = reinterpret_cast<T*>(slot_ + 2 * p_.head_dim);
    newest_ = oldest_ + 2 * p_.head_dim;
    is_last_ = reinterpret_cast<int*>(newest_ + 2 * p_.head_dim);
  }

  KVC_DEVICE void run() {
    wait_for_parts();
    scores_.combine_parts();
    if (part_.parts > 1) {
      write_output();
    }
    Chosen lowest = nothing_chosen();
    if (scores_.there_are()) {
      lowest = scores_.lowest_of_block(scores_.update());
    }
    if (part_.parts > 1 && !is_last(lowest)) {
      return;
    }
    let_go_and_take_in(lowest);
  }

 private:
  static constexpr int kPartsAtOnce = 16;  // whose loads are under way together

  // Blocks count themselves twice in one counter: here, and in is_last().
  KVC_DEVICE void wait_for_parts() {
    if (part_.parts > 1 && thread_.index() == 0) {
      (void)thread_.is_last_of(p_.arrived + part_.head_row(), 2 * part_.parts);
      thread_.wait_for(p_.arrived + part_.head_row(), part_.parts);
    }
    thread_.sync();
  }
  // The same in all threads.
  KVC_DEVICE bool is_last(const Chosen& lowest) {
    if (thread_.index() == 0) {
      if (scores_.there_are()) {
        p_.lowest[part_.head_row() * part_.parts + part_.part] = lowest;
      }
    }
    thread_.sync();
    if (thread_.index() == 0) {
      *is_last_ = thread_.is_last_of(p_.arrived + part_.head_row(), 2 * part_.parts) ? 1 : 0;
    }
    thread_.sync();
    return *is_last_ != 0;
  }

  // The part's share of the channels of all heads.
  KVC_DEVICE void write_output() const {
    const int dim = p_.head_dim;
    for (int i = part_.part * thread_.count() + thread_.index(); i < part_.heads * dim;
         i += part_.parts * thread_.count()) {
      const int head = i / dim, channel = i % dim;
      float output = 0;
      for (int first = 0; first < part_.parts; first += kPartsAtOnce) {
        float max[kPartsAtOnce], of_part[kPartsAtOnce];
        KVC_UNROLL
        for (int k = 0; k < kPartsAtOnce; ++k) {
          const bool exists = first + k < part_.parts;
          const std::int64_t row = part_.partial_row(exists ? first + k : first, head);
          max[k] = exists ? p_.partials.max[row] : negative_infinity();
          of_part[k] = p_.partials.output[row * dim + channel];
        }
        KVC_UNROLL
        for (int k = 0; k < kPartsAtOnce; ++k) {
          output += exp_below(max[k], scores_.total(head).max) * of_part[k];
        }
      }
      part_.set_output<T>(head, channel, output / scores_.total(head).sum);
    }
  }

  KVC_DEVICE Chosen lowest_of_parts() {
    Chosen own = nothing_chosen();
    for (int part = thread_.index(); part < part_.parts && scores_.there_are();
         part += thread_.count()) {
      own = lower(own, p_.lowest[part_.head_row() * part_.parts + part]);
    }
    return scores_.lowest_of_block(own);
  }

  // The ring's oldest token joins the context, from where another may have to leave; the new one takes its place. lowest: of
  // the block's rows.
  KVC_DEVICE void let_go_and_take_in(Chosen lowest) {
    const BudgetLayout& layout = rows_.cache.layout;
    const int to = part_.fill.is_laid_out ? ring_row(layout, n_) : n_;
    const bool makes_room = part_.fill.is_laid_out && layout.num_context > 0;
    const bool merges = makes_room && layout.num_residual > 0;
    const float oldest_score = makes_room ? rows_.score(to) : 0.0f;
    float score[1] = {};  // of the new token
    if (scores_.there_are()) {
      const int newest[1] = {part_.fill.rows};
      scores_.add_probabilities(newest, score);
    }
    if (part_.parts > 1) {
      lowest = lowest_of_parts();
    }
    const bool newcomer_leaves = p_.demotion == Demotion::kPaper && oldest_score < lowest.value;
    const bool is_any_lowest = lowest.row >= 0;  // not where all scores are NaN
    const int leaving = !makes_room || newcomer_leaves || !is_any_lowest ? to : lowest.row;
    int slot = 0;
    float members = 0;
    if (merges && layout.num_residual == 1) {
      members = read_slot(slot);
    }
    read_rows(makes_room, leaving, to);
    if (merges && layout.num_residual > 1) {
      slot = slot_for_leaving();
      members = read_slot(slot);
      thread_.sync();
    }
    if (merges) {
      rows_.merge(leaving_, slot, members, slot_, thread_);
    }
    if (leaving != to) {
      rows_.template move<T>(to, leaving, oldest_, thread_);
    }
    rows_.template store<T>(to, newest_, thread_);
    if (thread_.index() == 0 && scores_.there_are()) {
      rows_.score(to) = score[0];
      rows_.position(to) = n_;
    }
  }

  // To shared memory, all at once.
  KVC_DEVICE void read_rows(bool makes_room, int leaving, int oldest) {
    const int dim = p_.head_dim;
    for (int channel = thread_.index(); channel < dim; channel += thread_.count()) {
      const std::int64_t from = part_.head_row() * dim + channel;
      newest_[channel] = static_cast<const T*>(p_.new_key)[from];
      newest_[dim + channel] = static_cast<const T*>(p_.new_value)[from];
      if (makes_room) {
        oldest_[channel] = rows_.template key<T>(oldest)[channel];
        oldest_[dim + channel] = rows_.template value<T>(oldest)[channel];
        leaving_[channel] =
            rows_.template number<T>(rows_.cache.keys, rows_.cache.key_codes, leaving, channel);
        leaving_[dim + channel] =
            rows_.template number<T>(rows_.cache.values, rows_.cache.value_codes, leaving, channel);
      }
    }
    thread_.sync();
  }
  // Likewise, without a barrier. Returns the number of its members.
  KVC_DEVICE float read_slot(int slot) {
    const int dim = p_.head_dim;
    const std::int64_t from = rows_.slot_index(slot) * dim;
    for (int channel = thread_.index(); channel < dim; channel += thread_.count()) {
      slot_[channel] = rows_.cache.residual_keys[from + channel];
      slot_[dim + channel] = rows_.cache.residual_values[from + channel];
    }
    return rows_.count(slot);
  }

  // A token goes into the first free residual slot, or into the one with the key of the largest product with its own;
  // of equal ones the first. Slot 0 where no product is a number.
  KVC_DEVICE int slot_for_leaving() {
    Chosen own = nothing_chosen();
    for (int slot = thread_.warp(); slot < rows_.cache.layout.num_residual;
         slot += thread_.count() / 32) {
      const float likeness = rows_.likeness(slot, leaving_, thread_);
      own = lower(own, {rows_.count(slot) > 0 ? -likeness : negative_infinity(), slot, slot});
    }
    const int slot = scores_.lowest_of_block(own).row;
    return slot < 0 ? 0 : slot;
  }

  const BudgetStep& p_;
  const BudgetPart& part_;
  Thread& thread_;
  int n_;
  const BudgetRows& rows_;
  BudgetScores<Thread> scores_;
  float *leaving_, *slot_;  // [2, head_dim] key, then value
  T *oldest_, *newest_;     // likewise
  int* is_last_;
};

}  // namespace kvc
