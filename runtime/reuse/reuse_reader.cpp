#include "runtime/reuse/reuse_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/reuse/recompute_plan.h"
#include "runtime/reuse/row_attention.h"

namespace kvc {
namespace {

// On the CPU.
at::Tensor row_norms(const at::Tensor& x) { return x.to(at::kFloat).flatten(1).norm(2, {1}).cpu(); }

// A layer's new keys and values of the tokens that it computes, keys post-RoPE.
struct ComputedRows {
  at::Tensor query;      // [num_rows, num_heads, head_dim]
  at::Tensor key;        // [num_rows, num_kv_heads, head_dim]
  at::Tensor value;      // likewise
  at::Tensor positions;  // [num_rows], on the CPU as are all sets of tokens
};

// The decoder's attention while a prompt is read; layers in turn.
class ReusingAttention : public Attention {
 public:
  struct Pass {
    const ReuseModel& model;
    const ReusedPrompt& prompt;
    const ReuseOptions& options;
    const StoreTokens& store;
    ReuseReport& report;
    PartTimes* times;
  };
  explicit ReusingAttention(const Pass& pass)
      : model_(pass.model),
        prompt_(pass.prompt),
        options_(pass.options),
        store_(pass.store),
        report_(pass.report),
        times_(pass.times) {}

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override;
  std::optional<at::Tensor> rows_to_go_on() const override { return here(next_); }
  const at::Tensor& next() const { return next_; }

 private:
  std::int64_t num_tokens() const { return static_cast<std::int64_t>(prompt_.ids.size()); }
  ComputedRows rows_of(int layer, const AttentionInput& input, const TokenBatch& batch) const;
  at::Tensor reused_keys(int layer) const;
  at::Tensor attend_first(const ComputedRows& rows, const at::Tensor& deviation);
  at::Tensor attend_later(int layer, const ComputedRows& rows, const at::Tensor& deviation);
  at::Tensor received_from_last(const std::vector<ReceivedAttention>& received,
                                const RowAttention& attention, const ComputedRows& rows) const;
  void retain(int layer, const at::Tensor& recomputed, const at::Tensor& received);
  bool is_last(int layer) const { return layer + 1 == model_.config.num_layers; }
  // On the model's device.
  at::Tensor here(const at::Tensor& tensor) const { return tensor.to(model_.device()); }

  const ReuseModel& model_;
  const ReusedPrompt& prompt_;
  const ReuseOptions& options_;
  const StoreTokens& store_;
  ReuseReport& report_;
  PartTimes* times_;
  at::Tensor key_, value_;  // of all tokens, of the layer at hand
  HotTokens hot_;
  std::int64_t first_count_ = 0;  // |S_1|
  at::Tensor next_;  // of the rows of the layer at hand, those that the next one computes
};

ComputedRows ReusingAttention::rows_of(int layer, const AttentionInput& input,
                                       const TokenBatch& batch) const {
  const RopeTables& rope = model_.rope;
  return {.query = rope.rotate(layer, input.query, batch.positions),
          .key = finish_key(input.weights, rope, layer, input.key, batch.positions),
          .value = input.value,
          .positions = batch.positions};
}

// [num_tokens, num_kv_heads, head_dim] in the compute dtype.
at::Tensor ReusingAttention::reused_keys(int layer) const {
  const at::Tensor key =
      here(prompt_.donor.key[static_cast<std::size_t>(layer)].index_select(0, prompt_.match));
  if (!options_.rerotate) {
    return key.to(model_.dtype);
  }
  const at::Tensor raw = model_.rope.unrotate(layer, key, prompt_.match);
  return model_.rope.rotate(layer, raw.to(model_.dtype), at::arange(num_tokens(), at::kLong));
}

at::Tensor ReusingAttention::attend(int layer, const AttentionInput& input,
                                    const TokenBatch& batch) {
  const PartScope scope(times_, Part::kAttention, Part::kModel);
  const ComputedRows rows = rows_of(layer, input, batch);
  key_ = reused_keys(layer);
  value_ = here(prompt_.donor.value[static_cast<std::size_t>(layer)].index_select(0, prompt_.match))
               .to(model_.dtype);
  const at::Tensor places = here(rows.positions);
  const at::Tensor deviation = row_norms(key_.index_select(0, places) - rows.key) +
                               row_norms(value_.index_select(0, places) - rows.value);
  key_.index_copy_(0, places, rows.key);
  value_.index_copy_(0, places, rows.value);
  report_.recomputed.push_back(rows.positions.size(0));
  return layer == 0 ? attend_first(rows, deviation) : attend_later(layer, rows, deviation);
}

// Every token's query says which tokens are hot; only those of S_1 go on.
at::Tensor ReusingAttention::attend_first(const ComputedRows& rows, const at::Tensor& deviation) {
  const RowAttention attention(key_, value_, attention_rule(model_.config, 0));
  const std::vector<ReceivedAttention> received = attention.received(rows.query, rows.positions);
  hot_ = hot_tokens(sum_received(received, num_tokens()), options_.recovery);
  report_.hot_ratio = hot_.ratio;
  const at::Tensor first = first_recomputed(deviation, hot_, options_);
  first_count_ = first.size(0);
  next_ = is_last(0) ? at::full({1}, num_tokens() - 1, at::kLong) : first;
  retain(0, first, received_from_last(received, attention, rows));
  return attention.attend(rows.query.index_select(0, here(next_)), next_);
}

at::Tensor ReusingAttention::attend_later(int layer, const ComputedRows& rows,
                                          const at::Tensor& deviation) {
  const std::int64_t count =
      is_last(layer) ? 1 : num_recomputed(layer + 1, first_count_, num_tokens(), options_);
  next_ = next_recomputed(deviation, count);
  const RowAttention attention(key_, value_, attention_rule(model_.config, layer));
  std::vector<ReceivedAttention> received;
  const at::Tensor output = attention.attend(rows.query, rows.positions, &received);
  retain(layer, rows.positions, sum_received(received, num_tokens()));
  return output.index_select(0, here(next_));
}

// From the last (1 - r_dynamic) * num_tokens queries, at least one.
at::Tensor ReusingAttention::received_from_last(const std::vector<ReceivedAttention>& received,
                                                const RowAttention& attention,
                                                const ComputedRows& rows) const {
  const std::int64_t hot = hot_.hot.size(0);
  const std::int64_t first = std::min(hot, num_tokens() - 1);
  std::vector<ReceivedAttention> last;
  for (const ReceivedAttention& block : received) {
    const std::int64_t end = block.first + block.count;
    if (block.first >= first) {
      last.push_back(block);
    } else if (end > first) {
      for (const ReceivedAttention& part : attention.received(
               rows.query.slice(0, first, end), rows.positions.slice(0, first, end))) {
        last.push_back(part);
      }
    }
  }
  return sum_received(last, num_tokens());
}

void ReusingAttention::retain(int layer, const at::Tensor& recomputed, const at::Tensor& received) {
  const std::int64_t count =
      num_retained(layer, model_.config.num_layers, num_tokens(), hot_.ratio, options_);
  report_.retained.push_back(count);
  const at::Tensor kept = retained_tokens(count, recomputed, hot_.hot, received);
  const at::Tensor places = here(kept);
  store_(layer, key_.index_select(0, places), value_.index_select(0, places), kept);
}

}  // namespace

ReuseModel reuse_model(const Decoder& decoder) {
  return {.config = decoder.config(),
          .rope = decoder.rope(),
          .weights = decoder.weights(),
          .dtype = decoder.dtype(),
          .layer = [&decoder](int layer) -> const LayerWeights& { return decoder.layer(layer); }};
}

at::Tensor read_reusing(const ReuseModel& model, const ReusedPrompt& prompt,
                        const ReuseOptions& options, const StoreTokens& store, ReuseReport& report,
                        const Stopped& stopped, PartTimes* times) {
  ReusingAttention attention({model, prompt, options, store, report, times});
  TokenBatch batch = TokenBatch::of({prompt.ids});
  at::Tensor hidden_states =
      embed(model.config, model.weights, batch.ids.to(model.device()), model.dtype);
  for (int layer = 0; layer < model.config.num_layers; ++layer) {
    if (stopped && stopped()) {
      throw Interrupted();
    }
    hidden_states =
        run_layer(model.config, model.layer(layer), layer, hidden_states, batch, attention);
    const at::Tensor& rows = attention.next();
    batch = {.ids = batch.ids.index_select(0, rows),
             .positions = batch.positions.index_select(0, rows),
             .lengths = {rows.size(0)}};
  }
  return hidden_states;
}

}  // namespace kvc
