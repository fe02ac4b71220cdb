#include "convert/sweep/sweep_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/error.h"

namespace kvc {
namespace {

constexpr double kRounding = 1e-9;  // of ratios that are written as decimals

// A number of an entry, at least 0.
double number_of(const Json& entry, const char* key, const std::string& subject) {
  const auto found = entry.find(key);
  KVC_CHECK(found != entry.end() && found->is_number() && std::isfinite(found->get<double>()) &&
                found->get<double>() >= 0,
            "{}: {}: expected a number of at least 0, found {}", subject, key,
            found == entry.end() ? "nothing" : excerpt(*found));
  return found->get<double>();
}

}  // namespace

Json read_sweep_points(const std::filesystem::path& path) {
  const Json caches = read_json(path);
  KVC_CHECK(caches.is_object() && !caches.empty(),
            "{}: expected an object of caches, such as {{\"int8\": {{\"kept_ratio\": 0.5, \"kld\": "
            "0.001}}}}; bench/measure_engine_caches.py --json prints one",
            path.string());
  std::vector<Json> points;
  for (const auto& [name, entry] : caches.items()) {
    const std::string subject = fmt::format("{}: {}", path.string(), name);
    KVC_CHECK(entry.is_object(), "{}: expected kept_ratio and kld, found {}", subject,
              excerpt(entry));
    const double kept = number_of(entry, "kept_ratio", subject);
    KVC_CHECK(kept > 0, "{}: kept_ratio: expected a number above 0, found 0", subject);
    Json kld = {{"mean", number_of(entry, "kld", subject)}, {"standard_error", nullptr}};
    if (entry.contains("kld_error") && !entry["kld_error"].is_null()) {
      kld["standard_error"] = number_of(entry, "kld_error", subject);
    }
    points.push_back({{"name", name}, {"kept_ratio", kept}, {"kl_divergence", std::move(kld)}});
  }
  std::ranges::stable_sort(points, {}, kept_of);
  return points;
}

SweepKld point_kld(const Json& point) { return kld_of_mean(point["kl_divergence"]); }

const Json* best_within(const Json& candidates, double kept) {
  const Json* best = nullptr;
  for (const Json* row : measured_rows(candidates)) {
    if (kept_of(*row) <= kept + kRounding &&
        (best == nullptr || kld_of(*row).mean < kld_of(*best).mean)) {
      best = row;
    }
  }
  return best;
}

}  // namespace kvc
