#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/kv_plan.h"

namespace kvc {
namespace {

// The fields of one JSON object; every field must be asked for, none may be left over.
class Fields {
 public:
  Fields(const Json& json, std::string subject) : json_(json), subject_(std::move(subject)) {
    KVC_CHECK(json.is_object(), "{}: expected an object, found {}", subject_, json.type_name());
  }

  const Json& at(const char* name) {
    const auto found = json_.find(name);
    KVC_CHECK(found != json_.end(), "{}: \"{}\" is missing", subject_, name);
    ++read_;
    return *found;
  }

  // nullptr where there is none.
  const Json* optional(const char* name) {
    const auto found = json_.find(name);
    read_ += found == json_.end() ? 0 : 1;
    return found == json_.end() ? nullptr : &*found;
  }

  const Json& list(const char* name) {
    const Json& value = at(name);
    KVC_CHECK(value.is_array(), "{}: \"{}\" must be a list, found {}", subject_, name,
              excerpt(value));
    return value;
  }

  std::string text(const char* name) {
    const Json& value = at(name);
    KVC_CHECK(value.is_string(), "{}: \"{}\" must be text, found {}", subject_, name,
              excerpt(value));
    return value.get<std::string>();
  }

  // A name that `parse` knows.
  template <typename Enum>
  void read(const char* name, Enum& out, Enum (*parse)(const std::string&)) {
    const std::string value = text(name);
    try {
      out = parse(value);
    } catch (const Error& error) {
      fail("{}: {}", subject_, error.what());
    }
  }

  void read(const char* name, bool& out) {
    const Json& value = at(name);
    KVC_CHECK(value.is_boolean(), "{}: \"{}\" must be true or false, found {}", subject_, name,
              excerpt(value));
    out = value.get<bool>();
  }

  void read(const char* name, double& out) {
    const Json& value = at(name);
    KVC_CHECK(value.is_number(), "{}: \"{}\" must be a number, found {}", subject_, name,
              excerpt(value));
    out = value.get<double>();
  }

  template <typename Integer>
  requires std::is_integral_v<Integer>
  void read(const char* name, Integer& out) {
    const Json& value = at(name);
    const bool fits = value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
                      (!value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <=
                           static_cast<std::uint64_t>(std::numeric_limits<Integer>::max()));
    KVC_CHECK(fits, "{}: \"{}\" must be a whole number from 0 to {}, found {}", subject_, name,
              std::numeric_limits<Integer>::max(), excerpt(value));
    out = value.get<Integer>();
  }

  // Call last: an unknown field may change the meaning of the known ones.
  void done() const {
    KVC_CHECK(read_ == json_.size(), "{}: {} fields, {} are known; written by another version?",
              subject_, json_.size(), read_);
  }

 private:
  const Json& json_;
  std::string subject_;
  std::size_t read_ = 0;
};

Json group_to_json(const LatentGroup& group) {
  return {{"first_layer", group.first_layer},    {"num_layers", group.num_layers},
          {"split_kv", group.split_kv},          {"rank", group.rank},
          {"key_rank", group.key_rank},          {"value_rank", group.value_rank},
          {"merge_weights", group.merge_weights}};
}

LatentGroup group_from_json(const Json& json, const std::string& subject) {
  Fields fields(json, subject);
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
  fields.done();
  return group;
}

Json policy_to_json(const MergePolicy& policy) {
  return {{"rule", to_string(policy.rule)},
          {"granularity", to_string(policy.granularity)},
          {"prefill", to_string(policy.prefill)},
          {"unmerged", to_string(policy.unmerged)},
          {"target_kept_ratio", policy.target_kept_ratio},
          {"sink_tokens", policy.sink_tokens},
          {"window_tokens", policy.window_tokens},
          {"block_tokens", policy.block_tokens}};
}

MergePolicy policy_from_json(const Json& json, const std::string& subject) {
  Fields fields(json, subject);
  MergePolicy policy;
  fields.read("rule", policy.rule, parse_merge_rule);
  fields.read("granularity", policy.granularity, parse_granularity);
  fields.read("prefill", policy.prefill, parse_prefill_mode);
  fields.read("unmerged", policy.unmerged, parse_unmerged_form);
  fields.read("target_kept_ratio", policy.target_kept_ratio);
  fields.read("sink_tokens", policy.sink_tokens);
  fields.read("window_tokens", policy.window_tokens);
  fields.read("block_tokens", policy.block_tokens);
  fields.done();
  return policy;
}

KvWidths widths_from_json(const Json& json, const std::string& subject) {
  Fields fields(json, subject);
  KvWidths widths;
  fields.read("key", widths.key);
  fields.read("value", widths.value);
  fields.done();
  return widths;
}

KvSource source_from_json(const Json& json, const std::string& subject) {
  if (json == "plain") {
    return KvSource::kPlain;
  }
  KVC_CHECK(json == "latent", "{}: layer source {}; known: plain, latent", subject, excerpt(json));
  return KvSource::kLatent;
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
    json["layers"].push_back(source == KvSource::kPlain ? "plain" : "latent");
  }
  json["groups"] = Json::array();
  for (const LatentGroup& group : plan.groups) {
    json["groups"].push_back(group_to_json(group));
  }
  json["policy"] = policy_to_json(plan.policy);
  if (plan.own_widths) {
    json["own_widths"] = {{"key", plan.own_widths->key}, {"value", plan.own_widths->value}};
  }
  return json;
}

KvPlan kv_plan_from_json(const Json& json, const std::string& subject) {
  Fields fields(json, subject);
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
  plan.policy = policy_from_json(fields.at("policy"), subject + ": policy");
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
