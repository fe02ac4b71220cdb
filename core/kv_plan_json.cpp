#include "core/kv_plan_json.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json_fields.h"

namespace kvc {
namespace {

Json group_to_json(const LatentGroup& group) {
  Json json = {{"first_layer", group.first_layer},    {"num_layers", group.num_layers},
               {"split_kv", group.split_kv},          {"rank", group.rank},
               {"key_rank", group.key_rank},          {"value_rank", group.value_rank},
               {"merge_weights", group.merge_weights}};
  if (group.basis != LatentBasis::kWeights) {
    json["basis"] = to_string(group.basis);
  }
  return json;
}

LatentGroup group_from_json(const Json& json, const std::string& subject) {
  JsonFields fields(json, subject);
  LatentGroup group;
  fields.read("first_layer", group.first_layer);
  fields.read("num_layers", group.num_layers);
  fields.read("split_kv", group.split_kv);
  fields.read("rank", group.rank);
  fields.read("key_rank", group.key_rank);
  fields.read("value_rank", group.value_rank);
  for (const Json& weight : fields.list("merge_weights")) {
    KVC_CHECK(weight.is_number(), "{}: merge weight {} is no number", subject, excerpt(weight));
    group.merge_weights.push_back(weight.get<double>());
  }
  if (json.contains("basis")) {  // else of weights
    fields.read("basis", group.basis, parse_latent_basis);
  }
  fields.done();
  return group;
}

Json compression_to_json(const CompressionSettings& compression) {
  return {{"rule", to_string(compression.rule)},
          {"granularity", to_string(compression.granularity)},
          {"prefill", to_string(compression.prefill)},
          {"unmerged", to_string(compression.unmerged)},
          {"target_kept_ratio", compression.target_kept_ratio},
          {"sink_tokens", compression.sink_tokens},
          {"window_tokens", compression.window_tokens},
          {"block_tokens", compression.block_tokens}};
}

CompressionSettings compression_from_json(const Json& json, const std::string& subject) {
  JsonFields fields(json, subject);
  CompressionSettings compression;
  fields.read("rule", compression.rule, parse_merge_rule);
  fields.read("granularity", compression.granularity, parse_granularity);
  fields.read("prefill", compression.prefill, parse_prefill_mode);
  fields.read("unmerged", compression.unmerged, parse_unmerged_form);
  fields.read("target_kept_ratio", compression.target_kept_ratio);
  fields.read("sink_tokens", compression.sink_tokens);
  fields.read("window_tokens", compression.window_tokens);
  fields.read("block_tokens", compression.block_tokens);
  fields.done();
  return compression;
}

Json request_to_json(const RequestSettings& request) {
  return {{"later", to_string(request.later)},
          {"compress_generated", request.compress_generated},
          {"solver", to_string(request.solver)}};
}

RequestSettings request_from_json(const Json& json, const std::string& subject) {
  JsonFields fields(json, subject);
  RequestSettings request;
  fields.read("later", request.later, parse_later_tokens);
  fields.read("compress_generated", request.compress_generated);
  fields.read("solver", request.solver, parse_basis_solver);
  fields.done();
  return request;
}

KvWidths widths_from_json(const Json& json, const std::string& subject) {
  JsonFields fields(json, subject);
  KvWidths widths;
  fields.read("key", widths.key);
  fields.read("value", widths.value);
  fields.done();
  return widths;
}

Json coded_to_json(const CodedBlock& block) {
  Json json = {{"first_layer", block.first_layer},
               {"num_layers", block.num_layers},
               {"head", block.head < 0 ? Json(nullptr) : Json(block.head)},
               {"coefficients", block.coefficients},
               {"gain", block.gain}};
  if (block.part != CodedParts::kBoth) {
    json["part"] = to_string(block.part);
  }
  if (block.bases != 1) {
    json["bases"] = block.bases;
    json["rotated"] = block.rotated;
  }
  return json;
}

CodedBlock coded_from_json(const Json& json, const std::string& subject) {
  JsonFields fields(json, subject);
  CodedBlock block;
  fields.read("first_layer", block.first_layer);
  fields.read("num_layers", block.num_layers);
  if (json.contains("head") && !json.at("head").is_null()) {
    fields.read("head", block.head);
  } else {
    fields.at("head");
  }
  const std::vector<std::int64_t> counts = fields.integers<std::int64_t>("coefficients");
  KVC_CHECK(counts.size() == block.coefficients.size(),
            "{}: \"coefficients\" has {} counts, expected one for each of 0 to {} bits", subject,
            counts.size(), kMaxCodeBits);
  std::copy(counts.begin(), counts.end(), block.coefficients.begin());
  fields.read("gain", block.gain);
  if (json.contains("part")) {
    fields.read("part", block.part, parse_coded_parts);
  }
  if (json.contains("bases")) {
    fields.read("bases", block.bases);
    fields.read("rotated", block.rotated);
  }
  fields.done();
  return block;
}

Json fused_to_json(const FusedLayer& fused) {
  Json json = {{"layer", fused.layer},
               {"form", to_string(fused.form)},
               {"key_sources", fused.key_sources},
               {"value_sources", fused.value_sources}};
  if (!fused.key_heads.empty()) {
    json["key_heads"] = fused.key_heads;
  }
  if (!fused.value_heads.empty()) {
    json["value_heads"] = fused.value_heads;
  }
  return json;
}

FusedLayer fused_from_json(const Json& json, const std::string& subject) {
  JsonFields fields(json, subject);
  FusedLayer fused;
  fields.read("layer", fused.layer);
  fields.read("form", fused.form, parse_fusion_form);
  fused.key_sources = fields.integers<int>("key_sources");
  fused.value_sources = fields.integers<int>("value_sources");
  if (json.contains("key_heads")) {
    fused.key_heads = fields.integers<int>("key_heads");
  }
  if (json.contains("value_heads")) {
    fused.value_heads = fields.integers<int>("value_heads");
  }
  fields.done();
  return fused;
}

Json paired_to_json(const PairedLayers& paired) {
  return {{"first_layers", paired.first_layers},
          {"position", paired.position},
          {"retained", paired.retained},
          {"retains_similar", paired.retains_similar}};
}

PairedLayers paired_from_json(const Json& json, const std::string& subject) {
  JsonFields fields(json, subject);
  PairedLayers paired;
  paired.first_layers = fields.integers<int>("first_layers");
  fields.read("position", paired.position);
  fields.read("retained", paired.retained);
  fields.read("retains_similar", paired.retains_similar);
  fields.done();
  return paired;
}

KvSource source_from_json(const Json& json, const std::string& subject) {
  try {
    return parse_kv_source(json.is_string() ? json.get<std::string>() : excerpt(json));
  } catch (const Error& error) {
    fail("{}: {}", subject, error.what());
  }
}

}  // namespace

Json to_json(const KvPlan& plan) {
  Json json;
  json["method"] = plan.method;
  json["num_kv_heads"] = plan.num_kv_heads;
  json["head_dim"] = plan.head_dim;
  json["key_norm"] = plan.key_norm;
  json["layers"] = Json::array();
  for (const KvSource source : plan.layers) {
    json["layers"].push_back(to_string(source));
  }
  json["groups"] = Json::array();
  for (const LatentGroup& group : plan.groups) {
    json["groups"].push_back(group_to_json(group));
  }
  for (const CodedBlock& block : plan.coded) {
    json["coded"].push_back(coded_to_json(block));
  }
  for (const FusedLayer& fused : plan.fused) {
    json["fused"].push_back(fused_to_json(fused));
  }
  if (plan.paired) {
    json["paired"] = paired_to_json(*plan.paired);
  }
  json["policy"] = compression_to_json(plan.compression);
  if (plan.request) {
    json["request"] = request_to_json(*plan.request);
  }
  if (plan.own_widths) {
    json["own_widths"] = {{"key", plan.own_widths->key}, {"value", plan.own_widths->value}};
  }
  return json;
}

KvPlan kv_plan_from_json(const Json& json, const std::string& subject) {
  JsonFields fields(json, subject);
  KvPlan plan;
  plan.method = fields.text("method");
  fields.read("num_kv_heads", plan.num_kv_heads);
  fields.read("head_dim", plan.head_dim);
  fields.read("key_norm", plan.key_norm);
  for (const Json& source : fields.list("layers")) {
    plan.layers.push_back(source_from_json(source, subject));
  }
  for (const Json& group : fields.list("groups")) {
    plan.groups.push_back(
        group_from_json(group, fmt::format("{}: group {}", subject, plan.groups.size())));
  }
  plan.coded = fields.optional_list("coded", coded_from_json);
  plan.fused = fields.optional_list("fused", fused_from_json);
  if (const Json* paired = fields.optional("paired")) {
    plan.paired = paired_from_json(*paired, subject + ": paired");
  }
  plan.compression = compression_from_json(fields.at("policy"), subject + ": policy");
  if (const Json* request = fields.optional("request")) {
    plan.request = request_from_json(*request, subject + ": request");
  }
  if (const Json* widths = fields.optional("own_widths")) {
    plan.own_widths = widths_from_json(*widths, subject + ": own_widths");
  }
  fields.done();
  try {
    plan.check();
  } catch (const Error& error) {
    fail("{}: {}", subject, error.what());
  }
  return plan;
}

}  // namespace kvc
