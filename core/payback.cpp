#include "core/payback.h"

#include <fmt/format.h>

#include <cmath>

namespace kvc {
namespace {

// "12.3 KiB", "96.0 MiB"
std::string size_text(double bytes) {
  constexpr double kKibi = 1024, kMebi = 1024 * 1024, kFewKibi = 1000;
  if (bytes < kKibi) {
    return fmt::format("{:.0f} B", bytes);
  }
  return bytes < kFewKibi * kKibi ? fmt::format("{:.1f} KiB", bytes / kKibi)
                                  : fmt::format("{:.1f} MiB", bytes / kMebi);
}

}  // namespace

std::int64_t factor_bytes(const Checkpoint& converted, const Checkpoint& source) {
  std::int64_t bytes = 0;
  for (const std::string& name : converted.tensor_names()) {
    if (name.starts_with("kvconvert.")) {
      bytes += static_cast<std::int64_t>(converted.info(name).num_bytes());
    }
  }
  for (const std::string& name : source.tensor_names()) {
    if (!converted.contains(name)) {
      bytes -= static_cast<std::int64_t>(source.info(name).num_bytes());
    }
  }
  return bytes;
}

Payback payback(std::int64_t factor_bytes, double original_bytes_per_token, double kept_ratio) {
  Payback result;
  result.factor_bytes = factor_bytes;
  result.saved_bytes_per_token = original_bytes_per_token * (1 - kept_ratio);
  if (factor_bytes <= 0) {
    return result;
  }
  const double tokens = static_cast<double>(factor_bytes) / result.saved_bytes_per_token;
  constexpr double kMost = 1e15;
  result.tokens = result.saved_bytes_per_token > 0 && tokens < kMost
                      ? static_cast<std::int64_t>(std::floor(tokens)) + 1
                      : Payback::kNever;
  return result;
}

std::string to_text(const Payback& payback) {
  const std::string saved = size_text(std::abs(payback.saved_bytes_per_token));
  const std::string factors = size_text(static_cast<double>(std::abs(payback.factor_bytes)));
  if (payback.tokens == Payback::kNever) {
    return fmt::format("never pays (factors {}; caches are no smaller)", factors);
  }
  if (payback.factor_bytes == 0 && payback.saved_bytes_per_token <= 0) {
    return "saves nothing (no factors; caches are no smaller)";
  }
  if (payback.tokens == 0) {
    return fmt::format("pays from the first token ({}; saves {} a token)",
                       payback.factor_bytes == 0 ? "no factors" : "weights shrink by " + factors,
                       saved);
  }
  return fmt::format("pays from {} tokens in flight (factors {}; saves {} a token)", payback.tokens,
                     factors, saved);
}

Json to_json(const Payback& payback) {
  Json json;
  json["factor_bytes"] = payback.factor_bytes;
  json["saved_bytes_per_token"] = payback.saved_bytes_per_token;
  json["tokens"] = payback.tokens == Payback::kNever ? Json(nullptr) : Json(payback.tokens);
  return json;
}

}  // namespace kvc
