// Attention over a part of a KV head's rows. A row's channels lie over lanes, eight each, so that a warp reads several rows
// at a time and a key or value once for kHeads query heads. The last part has the residual slots and the new token
// besides.
#pragma once

#include <cmath>

#include "runtime/kernels/cuda/budget_places.h"
#include "runtime/kernels/cuda/device_numbers.h"

namespace kvc {

// Shared memory: a warp's softmax of each head: max, sum and output.
struct BudgetAttentionShared {
  static KVC_HOST_DEVICE int stride(int head_dim) { return head_dim + 2; }
  static KVC_HOST_DEVICE int bytes(int heads, int head_dim, int threads) {
    return threads / 32 * heads_together(heads) * stride(head_dim) *
           static_cast<int>(sizeof(float));
  }
};

template <class T, int kHeads, bool kCodes, class Thread>
class BudgetAttention {
 public:
  KVC_DEVICE BudgetAttention(const BudgetStep& params, Thread& thread)
      : p_(params),
        thread_(thread),
        cache_(params.caches[thread.block_y()]),
        heads_(params.num_heads / params.num_kv_heads),
        row_lanes_(params.head_dim / kChannels) {
    sequence_ = thread.block_y();
    kv_head_ = thread.block_x();
    fill_ = budget_fill(cache_.layout, p_.num_tokens[sequence_]);
    channel_ = thread.lane() % row_lanes_ * kChannels;
  }

  KVC_DEVICE void run() {
    for (int first = 0; first < heads_; first += kHeads) {
      first_ = first;
      attend();
    }
  }

 private:
  static constexpr int kChannels = 8;
  struct Channels {
    float x[kChannels];
  };

  KVC_DEVICE static Channels widened(const std::uint32_t (&words)[4]) {
    Channels channels;
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      channels.x[2 * i] = low_of_pair<T>(words[i]);
      channels.x[2 * i + 1] = high_of_pair<T>(words[i]);
    }
    return channels;
  }
  KVC_DEVICE Channels load(const void* base, std::int64_t row) {
    std::uint32_t words[4];
    thread_.load_words(words, static_cast<const T*>(base) + row * p_.head_dim + channel_);
    return widened(words);
  }
  // For a row of the layout, in the KV head.
  KVC_DEVICE Channels load_row(const void* exact, const std::uint8_t* codes, int row) {
    if constexpr (!kCodes) {
      return load(exact, static_cast<std::int64_t>(kv_head_) * cache_.capacity + row);
    } else {
      const BudgetPlace place = budget_place(cache_, p_.context, kv_head_, row);
      return place.is_code ? decoded(codes + place.index * code_row_bytes(p_.context, p_.head_dim))
                           : load(exact, place.index);
    }
  }
  KVC_DEVICE Channels decoded(const std::uint8_t* row) const {
    Channels channels;
    KVC_UNROLL
    for (int first = 0; first < kChannels; first += 4) {
      float four[4];
      decode_four(p_.context, row, p_.head_dim, channel_ + first, four);
      KVC_UNROLL
      for (int i = 0; i < 4; ++i) {
        channels.x[first + i] = four[i];
      }
    }
    return channels;
  }
  KVC_DEVICE Channels load_float(const float* base, std::int64_t row) const {
    Channels channels;
    KVC_UNROLL
    for (int i = 0; i < kChannels; ++i) {
      channels.x[i] = base[row * p_.head_dim + channel_ + i];
    }
    return channels;
  }

  KVC_DEVICE std::int64_t query_row(int head) const {
    return static_cast<std::int64_t>(sequence_) * p_.num_heads + kv_head_ * heads_ + first_ + head;
  }

  KVC_DEVICE void attend() {
    KVC_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      query_[head] = first_ + head < heads_ ? load(p_.query, query_row(head)) : Channels{};
      output_[head] = Channels{};
      state_[head] = SoftmaxState{};
    }
    const int part = thread_.block_z(), parts = p_.partials.num_parts;
    const PartRange range = split_rows(0, fill_.rows, 32, parts, part);
    const int groups = 32 / row_lanes_, group = thread_.lane() / row_lanes_;
    const int each = thread_.count() / 32 * groups;
    for (int row = range.first + thread_.warp() * groups; row < range.last; row += each) {
      const bool there = row + group < range.last;
      const int at = there ? row + group : row;
      const Channels key = load_row(cache_.keys, cache_.key_codes, at);
      const Channels value = load_row(cache_.values, cache_.value_codes, at);
      add(key, value, there ? row + group : -1, there ? 0.0f : negative_infinity());
    }
    if (part == parts - 1 && thread_.warp() == 0) {
      add_others(group == 0);
    }
    combine_rows();
    combine_warps();
  }

  // Residual slots, and the new token.
  KVC_DEVICE void add_others(bool is_first) {
    const std::int64_t slots = static_cast<std::int64_t>(kv_head_) * cache_.layout.num_residual;
    for (int slot = 0; slot < fill_.residual; ++slot) {
      const float bias = slot_bias(p_.alpha, cache_.counts[slots + slot]);
      add(load_float(cache_.residual_keys, slots + slot),
          load_float(cache_.residual_values, slots + slot), -1,
          is_first ? bias : negative_infinity());
    }
    const std::int64_t newest = static_cast<std::int64_t>(sequence_) * p_.num_kv_heads + kv_head_;
    add(load(p_.new_key, newest), load(p_.new_value, newest), is_first ? fill_.rows : -1,
        is_first ? 0.0f : negative_infinity());
  }

  // A row that the lanes of a group hold. `place`: among the products that are kept, or none.
  KVC_DEVICE void add(const Channels& key, const Channels& value, int place, float bias) {
    KVC_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      float product = 0;
      KVC_UNROLL
      for (int i = 0; i < kChannels; ++i) {
        product += query_[head].x[i] * key.x[i];
      }
      for (int lanes = row_lanes_ / 2; lanes >= 1; lanes /= 2) {
        product += thread_.shuffle_xor(product, lanes);
      }
      const float score = scaled_score(product, p_.scale, p_.softcap) + bias;
      if (place >= 0 && channel_ == 0 && first_ + head < heads_ && p_.products_stride > 0) {
        p_.products[query_row(head) * p_.products_stride + place] = score;
      }
      const float factor = raise_max(state_[head], score);
      const float weight = exp_below(score, state_[head].max);
      state_[head].sum += weight;
      KVC_UNROLL
      for (int i = 0; i < kChannels; ++i) {
        output_[head].x[i] = factor * output_[head].x[i] + weight * value.x[i];
      }
    }
  }

  // Over the groups of a warp.
  KVC_DEVICE void combine_rows() {
    for (int lanes = row_lanes_; lanes < 32; lanes *= 2) {
      KVC_UNROLL
      for (int head = 0; head < kHeads; ++head) {
        SoftmaxState other;
        other.max = thread_.shuffle_xor(state_[head].max, lanes);
        other.sum = thread_.shuffle_xor(state_[head].sum, lanes);
        const SoftmaxFactors factors = combine_softmax(state_[head], other);
        KVC_UNROLL
        for (int i = 0; i < kChannels; ++i) {
          const float number = thread_.shuffle_xor(output_[head].x[i], lanes);
          output_[head].x[i] = factors.total * output_[head].x[i] + factors.part * number;
        }
      }
    }
  }

  // Over the warps of a block, in order, so that equal inputs give equal bits.
  KVC_DEVICE void combine_warps() {
    auto* shared = reinterpret_cast<float*>(thread_.shared());
    const int dim = p_.head_dim, stride = BudgetAttentionShared::stride(dim);
    const int warps = thread_.count() / 32;
    if (thread_.lane() < row_lanes_) {
      KVC_UNROLL
      for (int head = 0; head < kHeads; ++head) {
        float* own = shared + (thread_.warp() * kHeads + head) * stride;
        KVC_UNROLL
        for (int i = 0; i < kChannels; ++i) {
          own[channel_ + i] = output_[head].x[i];
        }
        if (channel_ == 0) {
          own[dim] = state_[head].max;
          own[dim + 1] = state_[head].sum;
        }
      }
    }
    thread_.sync();
    for (int i = thread_.index(); i < kHeads * dim; i += thread_.count()) {
      const int head = i / dim, channel = i % dim;
      SoftmaxState total;
      float output = 0;
      for (int warp = 0; warp < warps; ++warp) {
        const float* own = shared + (warp * kHeads + head) * stride;
        const SoftmaxFactors factors = combine_softmax(total, {own[dim], own[dim + 1]});
        output = factors.total * output + factors.part * own[channel];
      }
      if (first_ + head < heads_) {
        write(head, channel, total, output);
      }
    }
    thread_.sync();
  }
  KVC_DEVICE void write(int head, int channel, const SoftmaxState& total, float output) const {
    const std::int64_t row = p_.partials.row(sequence_, thread_.block_z(), p_.num_heads,
                                             kv_head_ * heads_ + first_ + head);
    p_.partials.output[row * p_.head_dim + channel] = output;
    if (channel == 0) {
      p_.partials.max[row] = total.max;
      p_.partials.sum[row] = total.sum;
    }
  }

  const BudgetStep& p_;
  Thread& thread_;
  const BudgetCache cache_;
  BudgetFill fill_;
  int heads_, row_lanes_, sequence_, kv_head_, channel_, first_ = 0;
  Channels query_[kHeads], output_[kHeads];
  SoftmaxState state_[kHeads];
};

}  // namespace kvc
