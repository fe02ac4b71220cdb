#include "convert/cache_metric.h"

#include "core/enum_names.h"

namespace kvc {
namespace {

constexpr EnumName<CacheMetric> kMetrics[] = {{CacheMetric::kFisher, "fisher"},
                                              {CacheMetric::kAttention, "attn"},
                                              {CacheMetric::kScaledAttention, "attn_fs"},
                                              {CacheMetric::kNone, "none"}};

}  // namespace

std::string to_string(CacheMetric value) { return name_of(kMetrics, value); }

CacheMetric parse_cache_metric(const std::string& name) {
  return value_of(kMetrics, name, "metric");
}

bool needs_gradient(CacheMetric metric) {
  return metric == CacheMetric::kFisher || metric == CacheMetric::kScaledAttention;
}

bool needs_attention(CacheMetric metric) {
  return metric == CacheMetric::kAttention || metric == CacheMetric::kScaledAttention;
}

}  // namespace kvc
