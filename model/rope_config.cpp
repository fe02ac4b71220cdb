#include "model/rope_config.h"

#include "core/error.h"

namespace kvc {
namespace {

RopeType parse_rope_type(const std::string& name, const std::string& subject) {
  if (name == "default") {
    return RopeType::kDefault;
  }
  if (name == "linear") {
    return RopeType::kLinear;
  }
  if (name == "llama3") {
    return RopeType::kLlama3;
  }
  fail("{}: rope type \"{}\" is not supported; supported: default, linear, llama3", subject, name);
}

// "rope_type", or "type" as older files spell it.
std::string rope_type_name(const ConfigReader& parameters) {
  return parameters.text_or("rope_type", parameters.text_or("type", "default"));
}

void check_rotary_fraction(const ConfigReader& config, const ConfigReader& parameters) {
  const double fraction =
      parameters.number_or("partial_rotary_factor", config.number_or("partial_rotary_factor", 1));
  KVC_CHECK(fraction == 1, "{}: \"partial_rotary_factor\" is {}; only 1 is supported",
            config.subject(), fraction);
}

double positive(const ConfigReader& reader, const char* key, double value) {
  KVC_CHECK(value > 0, "{}: \"{}\" is {}; expected a positive number", reader.subject(), key,
            value);
  return value;
}

void resolve_llama3(const ConfigReader& config, const ConfigReader& parameters,
                    std::int64_t max_position_embeddings, RopeConfig& rope) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  rope.low_freq_factor =
      positive(parameters, "low_freq_factor", parameters.number("low_freq_factor"));
  rope.high_freq_factor = parameters.number("high_freq_factor");
  KVC_CHECK(rope.high_freq_factor > rope.low_freq_factor,
            "{}: \"high_freq_factor\" is {}; expected more than \"low_freq_factor\" ({})",
            parameters.subject(), rope.high_freq_factor, rope.low_freq_factor);
  const double inner =
      parameters.number_or(kOriginal, static_cast<double>(max_position_embeddings));
  rope.original_max_position_embeddings =
      positive(parameters, kOriginal, config.number_or(kOriginal, inner));
}

}  // namespace

RopeConfig resolve_rope(const ConfigReader& config, std::int64_t max_position_embeddings) {
  static const Json kEmpty = Json::object();
  const Json* scaling = config.object("rope_scaling");
  const Json* found = scaling != nullptr ? scaling : config.object("rope_parameters");
  const char* name = scaling != nullptr ? "rope_scaling" : "rope_parameters";
  const std::string subject = found != nullptr ? config.subject() + ": " + name : config.subject();
  const ConfigReader parameters(found != nullptr ? *found : kEmpty, subject);
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    KVC_CHECK(!parameters.contains(layer_type),
              "{}: parameters per layer type (\"{}\") are not supported", subject, layer_type);
  }

  RopeConfig rope;
  rope.type = parse_rope_type(rope_type_name(parameters), subject);
  rope.theta = parameters.contains("rope_theta") ? parameters.number("rope_theta")
                                                 : config.number_or("rope_theta", rope.theta);
  KVC_CHECK(rope.theta > 1, "{}: \"rope_theta\" is {}; expected more than 1", subject, rope.theta);
  check_rotary_fraction(config, parameters);
  if (rope.type != RopeType::kDefault) {
    rope.factor = positive(parameters, "factor", parameters.number("factor"));
  }
  if (rope.type == RopeType::kLlama3) {
    resolve_llama3(config, parameters, max_position_embeddings, rope);
  }
  return rope;
}

}  // namespace kvc
