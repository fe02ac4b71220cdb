#include <utility>
#include <vector>

#include "model/linear.h"
#include "runtime/attention/cache_segments.h"
#include "runtime/attention/kept_group.h"
#include "runtime/attention/latent_attention.h"
#include "runtime/attention/layer_source.h"
#include "runtime/compression/key_forms.h"
#include "runtime/compression/latent_encoding.h"
#include "runtime/compression/leaving_latents.h"

namespace kvc {
namespace {

// A token policy's view of a latent group.
class KeptLatents : public TokensOfAllHeads {
 public:
  KeptLatents(const TokenPolicy& policy, const GroupLayer& layer, LatentStore& store)
      : policy_(policy), layer_(layer), store_(store) {}

  at::Tensor keys(std::int64_t num_tokens) const override {
    std::vector<at::Tensor> keys;
    for (const Segment& segment : cache_segments(layer_.group, layer_.index, num_tokens, 1)) {
      keys.push_back(segment.key.to(at::kFloat));
    }
    return at::cat(keys);
  }
  SlotRows slots(std::int64_t num_tokens) const override {
    if (!has_merged()) {
      return {};
    }
    const Segment slots = slot_segment(layer_.group, layer_.index, layer_.alpha, num_tokens);
    return {slots.key.to(at::kFloat), slots.value, slots.score_bias};
  }
  std::int64_t num_rows() const override { return store_.num_rows(); }
  at::Tensor scores() const override { return store_.scores(); }
  void set_scores(const at::Tensor& scores) override { store_.set_scores(scores); }

 protected:
  bool has_merged() const override { return !store_.slots().empty(); }
  at::Tensor positions() const override { return store_.positions(); }
  void remove(const std::vector<std::int64_t>& rows, bool is_step) override {
    merge_into_slots(layer_.group, rows, !is_step && policy_.contiguous_merge, store_.slots());
    store_.keep(staying_rows(store_.num_rows(), rows));
  }

 private:
  const TokenPolicy& policy_;
  GroupLayer layer_;
  LatentStore& store_;
};

class LatentSource : public LayerSource {
 public:
  LatentSource(const SourceContext& context, int group)
      : LayerSource(context, spec_of(context, group).first_layer,
                    spec_of(context, group).num_layers),
        group_(group),
        spec_(spec_of(context, group)),
        factors_(context.factors.latent.groups[static_cast<std::size_t>(group)]) {}

  NewKeyValue keys_and_values(int layer, const AttentionInput& input) override {
    const KvPlan& plan = context().plan;
    const bool truncated =
        context().pass == Pass::kPrefill && plan.compression.prefill == PrefillMode::kTruncated;
    KeyValue exact{input.key, input.value};
    NewKeyValue made;
    if (needs_latents(plan, group_)) {
      made.latent = Linear{factors_.latent_proj, {}}(input.hidden);
    }
    if (spec_.replaces_projections() || truncated) {
      exact = reconstruct(context().decoder, input.weights, factors_,
                          factors_.layers[static_cast<std::size_t>(index_of(layer))], made.latent);
    }
    if (input.weights.k_norm.defined()) {
      made.key_rms = key_rms(exact.key, input.weights.k_norm);
    }
    if (holds_weighted()) {
      weigh(layer, made);
    }
    if (stores_raw_keys(context().decoder.config(), layer)) {
      made.key_before_norm = exact.key;
    }
    made.key = input.weights.k_norm.over_heads(exact.key);
    made.value = exact.value;
    return made;
  }

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    const int index = index_of(layer);
    LatentStore& group = cache.group(group_);
    const NewKeyValue& made = tokens.raw;
    if (index == 0 && group.holds_positions() && !spec_.replaces_projections()) {
      group.append_positions(tokens.positions);
    }
    if (spec_.replaces_projections()) {
      group.append_latent(index, made.latent, tokens.positions);
      return;
    }
    group.append_pending(index, made.key_before_norm.defined() ? made.key_before_norm : tokens.key,
                         made.value);
    if (group.keeps_latents()) {
      group.hold(index, made.latent);
    } else if (group.holds_key_rms()) {
      group.hold(index, made.key_rms);
    } else if (made.score.defined()) {
      group.hold(0, made.latent);
      group.hold(1, made.score);
    }
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    return attend_group(group_layer(layer, cache), query, positions);
  }

  void attended(int layer, const NewTokens& tokens, const at::Tensor& query,
                KvCache& cache) override {
    if (!context().policy.is_full()) {
      KeptLatents latents(context().policy, group_layer(layer, cache), cache.group(group_));
      finish_group(group_attended(layers(), layer, tokens, query), cache.kept_group(group_),
                   latents);
    }
  }

  void prompt_read(int layer, PromptCompression& prompt) override {
    if (is_last(layer)) {
      prompt.group_read(group_);
    }
  }

 private:
  static const LatentGroup& spec_of(const SourceContext& context, int group) {
    return context.plan.groups[static_cast<std::size_t>(group)];
  }

  GroupLayer group_layer(int layer, const KvCache& cache) const {
    return {.group = {context().decoder, context().plan, group_, factors_, cache.group(group_)},
            .index = index_of(layer),
            .alpha = context().policy.alpha,
            .selects = context().pass == Pass::kExtend && context().plan.selective.has_value(),
            .rebuilt = context().rebuilt};
  }

  bool holds_weighted() const {
    return !spec_.replaces_projections() && !keeps_latents(context().plan, group_) &&
           context().plan.compression.rule != MergeRule::kLs;
  }

  // sum_l w_l A x_l grows with every layer of the group; the last one's takes the place of the latent.
  void weigh(int layer, NewKeyValue& made) {
    const double weight = spec_.merge_weights[static_cast<std::size_t>(index_of(layer))];
    const at::Tensor term = made.latent.to(at::kFloat) * weight;
    if (index_of(layer) == 0) {
      first_latent_ = made.latent;
      weighted_latent_ = term;
    } else {
      weighted_latent_ = weighted_latent_ + term;
    }
    if (is_last(layer)) {
      made.score = row_cosine(std::exchange(first_latent_, {}), made.latent);
      made.latent = std::exchange(weighted_latent_, {});
    }
  }

  int group_;
  const LatentGroup& spec_;
  const GroupFactors& factors_;
  at::Tensor first_latent_, weighted_latent_;  // of the group's layers so far, of all tokens
};

}  // namespace

std::unique_ptr<LayerSource> latent_source(const SourceContext& context, int layer) {
  return std::make_unique<LatentSource>(context, context.plan.group_of(layer));
}

}  // namespace kvc
