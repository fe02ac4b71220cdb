#include "model/linear.h"
#include "runtime/attention/cache_segments.h"
#include "runtime/attention/kept_latents.h"
#include "runtime/attention/latent_attention.h"
#include "runtime/attention/layer_source.h"
#include "runtime/compression/latent_encoding.h"

namespace kvc {
namespace {

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
    const int index = index_of(layer);
    const bool truncated =
        context().pass == Pass::kPrefill && plan.policy.prefill == PrefillMode::kTruncated;
    KeyValue exact{input.key, input.value};
    if (needs_latents(plan, group_)) {
      latent_ = Linear{factors_.latent_proj, {}}(input.hidden);
    }
    if (spec_.replaces_projections() || truncated) {
      exact = reconstruct(context().decoder, input.weights, factors_,
                          factors_.layers[static_cast<std::size_t>(index)], latent_);
    }
    if (input.weights.k_norm.defined()) {
      key_rms_ = key_rms(exact.key, input.weights.k_norm);
    }
    if (!spec_.replaces_projections() && !keeps_latents(plan, group_) &&
        plan.policy.rule != MergeRule::kLs) {
      weigh(index);
    }
    key_before_norm_ = exact.key;
    return {input.weights.k_norm.over_heads(exact.key), exact.value};
  }

  void store(int layer, const NewTokens& tokens, KvCache& cache) override {
    const auto own = [&](const at::Tensor& x) { return x.narrow(0, tokens.first, tokens.count); };
    const int index = index_of(layer);
    LatentStore& group = cache.group(group_);
    if (index == 0 && group.holds_positions() && !spec_.replaces_projections()) {
      group.append_positions(tokens.positions);
    }
    if (spec_.replaces_projections()) {
      group.append_latent(index, own(latent_), tokens.positions);
      return;
    }
    const bool raw = stores_raw_keys(context().decoder.config(), layer);
    group.append_pending(index, raw ? own(key_before_norm_) : tokens.key, tokens.value);
    if (group.keeps_latents()) {
      group.hold_latent(index, own(latent_));
    } else if (group.holds_key_rms()) {
      group.hold_key_rms(index, own(key_rms_));
    } else if (context().plan.policy.rule != MergeRule::kLs && index == spec_.num_layers - 1) {
      group.hold_weighted(own(weighted_latent_), row_cosine(own(first_latent_), own(latent_)));
    }
  }

  at::Tensor attend(int layer, const at::Tensor& query, const at::Tensor& positions,
                    const KvCache& cache) const override {
    return attend_group(context().decoder, group_layer(layer), cache.group(group_), query,
                        positions);
  }

  void attended(int layer, const NewTokens& tokens, const at::Tensor& query,
                KvCache& cache) override {
    if (!context().policy.is_full()) {
      KeptLatents latents(context().decoder, context().policy, group_layer(layer),
                          cache.group(group_));
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

  GroupLayer group_layer(int layer) const {
    return {.plan = context().plan,
            .group = group_,
            .index = index_of(layer),
            .factors = factors_,
            .alpha = context().policy.alpha,
            .selects = context().pass == Pass::kExtend && context().plan.selective.has_value(),
            .rebuilt = context().rebuilt};
  }

  // sum_l w_l A x_l grows with every layer of the group.
  void weigh(int index) {
    const double weight = spec_.merge_weights[static_cast<std::size_t>(index)];
    const at::Tensor term = latent_.to(at::kFloat) * weight;
    if (index == 0) {
      first_latent_ = latent_;
      weighted_latent_ = term;
    } else {
      weighted_latent_ = weighted_latent_ + term;
    }
  }

  int group_;
  const LatentGroup& spec_;
  const GroupFactors& factors_;
  // Of all tokens of the batch, in the layer that was read last.
  at::Tensor latent_, key_before_norm_, key_rms_;
  at::Tensor first_latent_, weighted_latent_;  // of the group's layers so far
};

}  // namespace

std::unique_ptr<LayerSource> latent_source(const SourceContext& context, int layer) {
  return std::make_unique<LatentSource>(context, context.plan.group_of(layer));
}

}  // namespace kvc
