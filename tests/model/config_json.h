// config.json as the tests of ModelConfig write and change it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"

namespace kvc::testing {

inline ModelConfig parse(const Json& json) { return parse_model_config(json, "some/config.json"); }

inline std::string refusal(const Json& json) {
  return error_of([&] { parse(json); });
}

inline Json config_of(const std::string& model_type) {
  return synthetic_config({.model_type = model_type});
}

inline Json with(Json json, const char* key, Json value) {
  json[key] = std::move(value);
  return json;
}

inline Json without(Json json, const char* key) {
  json.erase(key);
  return json;
}

// For every layer; nullopt: all tokens.
inline std::vector<std::optional<std::int64_t>> windows_of(const ModelConfig& config) {
  std::vector<std::optional<std::int64_t>> windows;
  for (const LayerSpec& layer : config.layers) {
    windows.push_back(layer.window);
  }
  return windows;
}

}  // namespace kvc::testing
