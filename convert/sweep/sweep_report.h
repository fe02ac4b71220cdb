// The report of a sweep, from its JSON.
//
// {"checkpoint": its directory's name, "tool_version", "seed", "answers": [...], "points": [...] (sweep_points.h),
//  "candidates": [...]}, a candidate being
// {"name", "status": "measured", "refused" or "failed", "reason" of the last two; of measured ones
//  "command", "kept_ratio", "cache": [{"tokens", "bytes", "original_bytes"}] (null where a policy bounds it),
//  "payback" (null for plain ones), "validation" (kvvalidate's report)}
// and an answer {"kl_divergence", "candidate": a name or null, "unsure": [names]}.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"

namespace kvc {

// For each divergence of a list: the measured candidate that keeps least, with a mean KL divergence that is below it by
// two standard errors at least, and those that keep less and whose mean alone is below.
Json sweep_answers(const Json& candidates);
// What the validations warn of, each sentence once, with the candidates that have it unless all do.
std::vector<std::string> sweep_warnings(const Json& sweep);
// A table of the candidates, the answers and the warnings, for a terminal.
std::string sweep_text(const Json& sweep);
std::string sweep_html(const Json& sweep);

}  // namespace kvc
