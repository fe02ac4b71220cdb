#include "runtime/plan_source.h"

#include "core/error.h"
#include "core/kv_plan_json.h"
#include "model/cache_plan.h"
#include "model/fused_kv.h"

namespace kvc {
namespace {

constexpr int kFactoredFormat = 1;

// Fused layers read keys that are turned, and windows that are as long, as theirs.
void check_sources(const KvPlan& plan, const ModelConfig& config, const std::string& subject) {
  for (const FusedLayer& layer : plan.fused) {
    for (const auto* sources : {&layer.key_sources, &layer.value_sources}) {
      for (const int source : *sources) {
        KVC_CHECK(
            can_read(config, layer.layer, source),
            "{}: fused layer {} reads layer {}, whose RoPE differs or whose window is shorter; "
            "export the conversion again",
            subject, layer.layer, source);
      }
    }
    KVC_CHECK(layer.form != FusionForm::kFull || !config.depends_on_length(layer.layer),
              "{}: fused layer {} rotates keys back, which is impossible if RoPE depends on the "
              "length of the text; convert with --fusion vectors",
              subject, layer.layer);
  }
}

}  // namespace

KvPlan plan_of(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (!checkpoint.config().contains("kvconvert")) {
    return plain_plan(config);
  }
  const std::string subject = (checkpoint.directory() / "config.json").string();
  const Json& converted = checkpoint.config().at("kvconvert");
  KVC_CHECK(converted.is_object() && converted.contains("format") && converted.contains("plan"),
            "{}: \"kvconvert\" lacks \"format\" or \"plan\"; export the conversion again", subject);
  KVC_CHECK(
      converted.at("format") == kFactoredFormat,
      "{}: kvconvert format {} expected, {} found; use the version that wrote it, or export again",
      subject, kFactoredFormat, converted.at("format").dump());
  KvPlan plan = kv_plan_from_json(converted.at("plan"), subject);
  KVC_CHECK(
      plan.num_layers() == config.num_layers && plan.num_kv_heads == config.num_kv_heads &&
          plan.head_dim == config.head_dim,
      "{}: the plan is for {} layers of {} KV heads of {} channels, the model has {} of {} of {}",
      subject, plan.num_layers(), plan.num_kv_heads, plan.head_dim, config.num_layers,
      config.num_kv_heads, config.head_dim);
  KVC_CHECK(plan.key_norm == (config.arch->qk_norm != QkNorm::kNone),
            "{}: the plan and the architecture disagree whether keys have a norm (plan: {}normed); "
            "export again",
            subject, plan.key_norm ? "" : "not ");
  const KvWidths stored = plan.plain_widths(), own = plain_plan(config).plain_widths();
  KVC_CHECK(plan.own_widths.has_value() == config.mla.has_value() && stored.key == own.key &&
                stored.value == own.value,
            "{}: the plan expects caches of {} and {} numbers per token and layer, the model's has "
            "{} and {}; export the conversion again",
            subject, stored.key, stored.value, own.key, own.value);
  check_sources(plan, config, subject);
  return plan;
}

std::vector<bool> replaced_layers(const KvPlan& plan) {
  std::vector<bool> replaced;
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    const int group = plan.group_of(layer);
    replaced.push_back(
        plan.layers[static_cast<std::size_t>(layer)] == KvSource::kFused ||
        (group >= 0 && plan.groups[static_cast<std::size_t>(group)].replaces_projections()));
  }
  return replaced;
}

}  // namespace kvc
