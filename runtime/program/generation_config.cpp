#include "runtime/program/generation_config.h"

#include <cmath>

#include "core/error.h"
#include "core/json.h"
#include "runtime/program/prompts.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

Json read_generation_config(const fs::path& model) {
  const fs::path path = model / "generation_config.json";
  if (!fs::exists(path)) {
    return Json::object();
  }
  Json json = read_json(path);
  KVC_CHECK(json.is_object(), "{}: expected an object, found {}", path.string(), excerpt(json));
  return json;
}

double number(const Json& config, const char* key, double otherwise) {
  if (!config.contains(key) || config.at(key).is_null()) {
    return otherwise;
  }
  KVC_CHECK(config.at(key).is_number(), "{}: expected a number, found {}", key,
            excerpt(config.at(key)));
  return config.at(key).get<double>();
}

SamplingOptions sampling_of(const Json& config) {
  constexpr double kTransformersTopK = 50, kMostTopK = 1e9;
  const double top_k = number(config, "top_k", kTransformersTopK);
  KVC_CHECK(top_k == std::floor(top_k) && top_k >= 0 && top_k <= kMostTopK,
            "top_k: expected a count, found {}", top_k);
  SamplingOptions options{.temperature = number(config, "temperature", 1),
                          .top_k = static_cast<std::int64_t>(top_k),
                          .top_p = number(config, "top_p", 1),
                          .min_p = number(config, "min_p", 0),
                          .repetition_penalty = number(config, "repetition_penalty", 1)};
  check(options);
  return options;
}

}  // namespace

std::vector<std::int64_t> stop_ids(const fs::path& model, const ModelConfig& config) {
  const Json json = read_generation_config(model);
  if (!json.contains("eos_token_id") || json.at("eos_token_id").is_null()) {
    return config.eos_token_ids;
  }
  const Json& eos = json.at("eos_token_id");
  return id_list(eos.is_array() ? eos : Json::array({eos}), model / "generation_config.json");
}

SamplingOptions authors_sampling(const fs::path& model) {
  const Json config = read_generation_config(model);
  try {
    return sampling_of(config);
  } catch (const Error& error) {
    fail("{}: {}", (model / "generation_config.json").string(), error.what());
  }
}

SamplingOptions resolve(const SamplingRequest& request, const fs::path& model) {
  SamplingOptions options = request.sample ? authors_sampling(model) : SamplingOptions{};
  options.temperature = request.temperature.value_or(options.temperature);
  options.top_k = request.top_k.value_or(options.top_k);
  options.top_p = request.top_p.value_or(options.top_p);
  options.min_p = request.min_p.value_or(options.min_p);
  options.repetition_penalty = request.repetition_penalty.value_or(options.repetition_penalty);
  check(options);
  return options;
}

}  // namespace kvc
