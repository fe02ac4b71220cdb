// Caches that were measured elsewhere, beside a sweep's candidates.
#pragma once

#include <filesystem>

#include "convert/sweep/sweep_rows.h"
#include "core/json.h"

namespace kvc {

// Reads {name: {"kept_ratio", "kld", "kld_error" (a number, null or absent)}}, other members ignored, as
// [{"name", "kept_ratio", "kl_divergence": {"mean", "standard_error"}}], the smallest cache first. Error that names the file
// and the entry unless kept_ratio is above 0 and divergences are at least 0.
Json read_sweep_points(const std::filesystem::path& path);

SweepKld point_kld(const Json& point);
// The measured candidate with the least divergence among those that keep at most `kept`; null without one.
const Json* best_within(const Json& candidates, double kept);

}  // namespace kvc
