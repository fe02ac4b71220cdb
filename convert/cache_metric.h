// The metric that weights errors of keys and values when their basis is chosen.
#pragma once

#include <string>

namespace kvc {

//   fisher   the gradient's second moment (fisher/metric.h)
//   attn     attention's output alone (calibrate/attention_metric.h)
//   attn_fs  attn, each layer's keys and values scaled to the gradient's energy
//   none     all alike
enum class CacheMetric { kFisher, kAttention, kScaledAttention, kNone };

std::string to_string(CacheMetric);
CacheMetric parse_cache_metric(const std::string&);  // Error lists the known ones

bool needs_gradient(CacheMetric metric);   // metric.h5
bool needs_attention(CacheMetric metric);  // covariance.h5 with the attention metric

}  // namespace kvc
