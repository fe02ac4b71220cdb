// The KV plan as JSON, as config.json and conversion.h5 hold it.
#pragma once

#include <string>

#include "core/json.h"
#include "core/kv_plan.h"

namespace kvc {

Json to_json(const KvPlan& plan);
KvPlan kv_plan_from_json(const Json& json, const std::string& subject);

}  // namespace kvc
