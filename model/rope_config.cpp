#include "model/config_parts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace kvc {
namespace {

constexpr const char* kOriginalPositions = "original_max_position_embeddings";
constexpr double kPhi3OriginalPositions = 4096;  // when absent

// What the types below read, and what changes nothing here.
constexpr std::array<std::string_view, 19> kKnownKeys = {"rope_type",
                                                         "type",
                                                         "rope_theta",
                                                         "partial_rotary_factor",
                                                         "factor",
                                                         "low_freq_factor",
                                                         "high_freq_factor",
                                                         "original_max_position_embeddings",
                                                         "max_position_embeddings",
                                                         "attention_factor",
                                                         "beta_fast",
                                                         "beta_slow",
                                                         "mscale",
                                                         "mscale_all_dim",
                                                         "truncate",
                                                         "short_factor",
                                                         "long_factor",
                                                         "finetuned",
                                                         "rope_local_base_freq"};

// One set of parameters, and what stands around it.
struct Source {
  const ConfigReader& parameters;
  const ConfigReader& top;
  const ModelConfig& config;
};

RopeType parse_rope_type(const std::string& name, RopeRule rule, const std::string& subject) {
  if (name == "default") {
    return RopeType::kDefault;
  }
  if (rule == RopeRule::kLongRope) {
    if (name == "longrope" || name == "su" || name == "yarn") {
      return RopeType::kLongRope;
    }
    fail("{}: rope type \"{}\" is not supported; this architecture has default and longrope",
         subject, name);
  }
  constexpr std::pair<std::string_view, RopeType> kTypes[] = {
      {"linear", RopeType::kLinear}, {"dynamic", RopeType::kDynamic},   {"yarn", RopeType::kYarn},
      {"llama3", RopeType::kLlama3}, {"longrope", RopeType::kLongRope},
  };
  for (const auto& [known, type] : kTypes) {
    if (name == known) {
      return type;
    }
  }
  fail(
      "{}: rope type \"{}\" is not supported; supported: default, linear, dynamic, yarn, llama3, "
      "longrope",
      subject, name);
}

double positive(const ConfigReader& reader, const char* key, double value) {
  KVC_CHECK(value > 0, "{}: \"{}\" is {}; expected a positive number", reader.subject(), key,
            value);
  return value;
}

double positive(const ConfigReader& reader, const char* key) {
  return positive(reader, key, reader.number(key));
}

// That queries and keys are multiplied with.
double magnitude(const ConfigReader& reader, double inferred) {
  constexpr const char* kKey = "attention_factor";
  constexpr double kLeast = 1e-6, kMost = 1e6;  // its square divides what is turned back
  const double value = reader.number_or(kKey, inferred);
  KVC_CHECK(value >= kLeast && value <= kMost, "{}: \"{}\" is {}; expected {} to {}",
            reader.subject(), kKey, value, kLeast, kMost);
  return value;
}

// The top-level key wins over the parameters' own; without either the model's length counts.
double original_positions(const Source& source) {
  const auto& [parameters, top, config] = source;
  double value = static_cast<double>(config.max_position_embeddings);
  value = parameters.number_or(kOriginalPositions, value);
  if (config.arch->rope == RopeRule::kLongRope) {
    value = kPhi3OriginalPositions;
  }
  if (config.arch->rope != RopeRule::kPerLayerType) {
    value = top.number_or(kOriginalPositions, value);
  }
  return positive(parameters, kOriginalPositions, value);
}

void resolve_llama3(const Source& source, RopeConfig& rope) {
  const ConfigReader& parameters = source.parameters;
  rope.factor = positive(parameters, "factor");
  rope.low_freq_factor = positive(parameters, "low_freq_factor");
  rope.high_freq_factor = parameters.number("high_freq_factor");
  KVC_CHECK(rope.high_freq_factor > rope.low_freq_factor,
            "{}: \"high_freq_factor\" is {}; expected more than \"low_freq_factor\" ({})",
            parameters.subject(), rope.high_freq_factor, rope.low_freq_factor);
  rope.original_max_position_embeddings = original_positions(source);
}

// The factor, or how much longer the model's texts are than those it was first trained on.
double length_factor(const Source& source, double original) {
  const double ratio = static_cast<double>(source.config.max_position_embeddings) / original;
  return positive(source.parameters, "factor", source.parameters.number_or("factor", ratio));
}

void resolve_yarn(const Source& source, RopeConfig& rope) {
  const ConfigReader& parameters = source.parameters;
  rope.original_max_position_embeddings = original_positions(source);
  rope.factor = length_factor(source, rope.original_max_position_embeddings);
  const auto or_default = [&](const char* key, double value) {
    const double given = parameters.number_or(key, 0);
    return given == 0 ? value : positive(parameters, key, given);
  };
  rope.beta_fast = or_default("beta_fast", 32);
  rope.beta_slow = or_default("beta_slow", 1);
  rope.truncate = parameters.boolean_or("truncate", true);
  const double mscale = parameters.number_or("mscale", 0);
  const double mscale_all_dim = parameters.number_or("mscale_all_dim", 0);
  const double inferred =
      mscale != 0 && mscale_all_dim != 0
          ? yarn_magnitude(rope.factor, mscale) / yarn_magnitude(rope.factor, mscale_all_dim)
          : yarn_magnitude(rope.factor, 1);
  rope.attention_factor = magnitude(parameters, inferred);
}

std::vector<double> channel_factors(const Source& source, const char* key, std::size_t count) {
  std::vector<double> factors = source.parameters.numbers(key);
  KVC_CHECK(factors.size() == count,
            "{}: \"{}\" has {} entries; expected {}, one per rotated pair of channels",
            source.parameters.subject(), key, factors.size(), count);
  KVC_CHECK(std::all_of(factors.begin(), factors.end(), [](double factor) { return factor > 0; }),
            "{}: \"{}\" holds a factor that is not positive", source.parameters.subject(), key);
  return factors;
}

void resolve_longrope(const Source& source, RopeConfig& rope) {
  rope.original_max_position_embeddings = original_positions(source);
  rope.factor = length_factor(source, rope.original_max_position_embeddings);
  const double inferred =
      rope.factor <= 1
          ? 1
          : std::sqrt(1 + std::log(rope.factor) / std::log(rope.original_max_position_embeddings));
  rope.attention_factor = magnitude(source.parameters, inferred);
  const auto pairs = static_cast<std::size_t>(rope.rotary_dim / 2);
  rope.short_factors = channel_factors(source, "short_factor", pairs);
  rope.long_factors = channel_factors(source, "long_factor", pairs);
}

std::int64_t rotary_dim(const Source& source) {
  constexpr const char* kKey = "partial_rotary_factor";
  const double fraction = source.parameters.number_or(kKey, source.top.number_or(kKey, 1));
  KVC_CHECK(fraction == 1 || source.config.arch->partial_rotary,
            "{}: \"{}\" is {}; {} models rotate whole heads, only 1 is supported",
            source.top.subject(), kKey, fraction, source.config.arch->model_type);
  KVC_CHECK(fraction > 0 && fraction <= 1, "{}: \"{}\" is {}; expected more than 0 and at most 1",
            source.top.subject(), kKey, fraction);
  const auto channels =
      static_cast<std::int64_t>(static_cast<double>(source.config.rotary_width()) * fraction);
  KVC_CHECK(channels >= 2 && channels % 2 == 0,
            "{}: \"{}\" {} rotates {} of {} channels; expected an even number",
            source.top.subject(), kKey, fraction, channels, source.config.rotary_width());
  return channels;
}

void check_keys(const ConfigReader& parameters) {
  for (const std::string& key : parameters.keys()) {
    KVC_CHECK(std::find(kKnownKeys.begin(), kKnownKeys.end(), key) != kKnownKeys.end(),
              "{}: \"{}\" is set, which is not supported", parameters.subject(), key);
  }
}

RopeConfig resolve(const Source& source, double theta) {
  const auto& [parameters, top, config] = source;
  check_keys(parameters);
  RopeConfig rope;
  rope.type =
      parse_rope_type(parameters.text_or("rope_type", parameters.text_or("type", "default")),
                      config.arch->rope, parameters.subject());
  rope.theta = parameters.number_or("rope_theta", theta);
  KVC_CHECK(rope.theta > 1, "{}: \"rope_theta\" is {}; expected more than 1", parameters.subject(),
            rope.theta);
  rope.rotary_dim = rotary_dim(source);
  rope.interleaved = config.arch->latent_attention;
  rope.mscale_all_dim = parameters.number_or("mscale_all_dim", 0);
  switch (rope.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kDynamic:
      rope.max_position_embeddings = static_cast<double>(config.max_position_embeddings);
      KVC_CHECK(rope.rotary_dim > 2, "{}: dynamic RoPE needs more than one pair of channels",
                parameters.subject());
      [[fallthrough]];
    case RopeType::kLinear:
      rope.factor = positive(parameters, "factor");
      break;
    case RopeType::kLlama3:
      resolve_llama3(source, rope);
      break;
    case RopeType::kYarn:
      resolve_yarn(source, rope);
      break;
    case RopeType::kLongRope:
      resolve_longrope(source, rope);
      break;
  }
  return rope;
}

// One set of parameters per layer type; the older spelling scales full layers only, and only by its
// "rope_type": "type" alone is not read there, as in transformers.
std::vector<RopeConfig> resolve_layer_types(const ConfigReader& top, const ModelConfig& config) {
  const Json unscaled = {{"rope_type", "default"}};
  Json parameters = {{"full_attention", unscaled}, {"sliding_attention", unscaled}};
  if (const Json* given = top.object("rope_parameters")) {
    for (const auto& [type, value] : given->items()) {
      KVC_CHECK(parameters.contains(type) && (value.is_object() || value.is_null()),
                "{}: rope_parameters has \"{}\"; expected an object each for full_attention and "
                "sliding_attention",
                top.subject(), type);
      parameters[type] = value.is_null() ? unscaled : value;
    }
  }
  if (const Json* scaling = top.object("rope_scaling")) {
    parameters["full_attention"].update(*scaling);
  }
  const auto of_type = [&](const char* type, std::string_view theta_key, double theta) {
    const std::string subject = top.subject() + ": " + type;
    const ConfigReader reader(parameters[type], subject);
    return resolve({reader, top, config}, top.number_or(std::string(theta_key).c_str(), theta));
  };
  const ArchSpec& arch = *config.arch;
  return {of_type("full_attention", "rope_theta", arch.default_theta),
          of_type("sliding_attention", arch.sliding_theta_key, arch.default_sliding_theta)};
}

}  // namespace

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

std::vector<RopeConfig> resolve_ropes(const ConfigReader& top, const ModelConfig& config) {
  if (config.arch->rope == RopeRule::kPerLayerType) {
    return resolve_layer_types(top, config);
  }
  static const Json kEmpty = Json::object();
  const Json* scaling = top.object("rope_scaling");
  const Json* found = scaling != nullptr ? scaling : top.object("rope_parameters");
  const char* name = scaling != nullptr ? "rope_scaling" : "rope_parameters";
  const std::string subject = found != nullptr ? top.subject() + ": " + name : top.subject();
  const ConfigReader parameters(found != nullptr ? *found : kEmpty, subject);
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    KVC_CHECK(!parameters.contains(layer_type),
              "{}: parameters per layer type (\"{}\") are not supported", subject, layer_type);
  }
  return {
      resolve({parameters, top, config}, top.number_or("rope_theta", config.arch->default_theta))};
}

}  // namespace kvc
