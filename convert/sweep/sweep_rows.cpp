#include "convert/sweep/sweep_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace kvc {
namespace {

std::string mean_with_error(double mean, double error) {
  return std::isfinite(error) ? fmt::format("{:.3g} ± {:.2g}", mean, error)
                              : fmt::format("{:.3g}", mean);
}

}  // namespace

const Json& continuation_of(const Json& row) { return row["validation"]["continuation"]; }

SweepKld kld_of(const Json& row) { return kld_of_mean(continuation_of(row)["kl_divergence"]); }
SweepKld kld_of_mean(const Json& kld) {
  const Json& error = kld["standard_error"];
  return {kld["mean"].get<double>(), error.is_number() ? error.get<double>() : INFINITY};
}

double kept_of(const Json& row) { return row["kept_ratio"].get<double>(); }
std::string name_of(const Json& row) { return row["name"].get<std::string>(); }

std::vector<const Json*> measured_rows(const Json& candidates) {
  std::vector<const Json*> rows;
  for (const Json& row : candidates) {
    if (row["status"] == "measured") {
      rows.push_back(&row);
    }
  }
  std::ranges::stable_sort(
      rows, {}, [](const Json* row) { return std::pair(kept_of(*row), kld_of(*row).mean); });
  return rows;
}

std::vector<const Json*> frontier(const Json& candidates) {
  std::vector<const Json*> best;
  for (const Json* row : measured_rows(candidates)) {
    if (best.empty() || kld_of(*row).mean < kld_of(*best.back()).mean) {
      best.push_back(row);
    }
  }
  return best;
}

const Json* find_row(const Json& candidates, const Json& name) {
  for (const Json& row : candidates) {
    if (row["name"] == name) {
      return &row;
    }
  }
  return nullptr;
}

std::string kld_text(const SweepKld& kld) { return mean_with_error(kld.mean, kld.error); }
std::string kld_text(const Json& row) { return kld_text(kld_of(row)); }

std::string perplexity_text(const Json& row) {
  const Json& ratio = continuation_of(row)["perplexity_ratio"];
  return ratio.is_number() ? fmt::format("{:.4f}", ratio.get<double>()) : "–";
}

std::string top_text(const Json& row) {
  return fmt::format("{:.2f} %", 100 * continuation_of(row)["same_top"]["mean"].get<double>());
}

std::string payback_text(const Json& row) {
  const Json& payback = row["payback"];
  if (payback.is_null()) {
    return "at once";
  }
  if (payback["tokens"].is_null()) {
    return "never";
  }
  const auto tokens = payback["tokens"].get<std::int64_t>();
  return tokens == 0 ? "at once" : fmt::format("{} tokens", tokens);
}

std::string unsure_text(const Json& answer) {
  std::string names;
  for (const Json& name : answer["unsure"]) {
    names += (names.empty() ? "" : ", ") + name.get<std::string>();
  }
  return names;
}

}  // namespace kvc
