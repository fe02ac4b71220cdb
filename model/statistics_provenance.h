// Provenance of files of statistics.
#pragma once

#include <string>

#include "core/checkpoint.h"
#include "core/json.h"
#include "core/provenance.h"
#include "core/token_set.h"
#include "model/compute_place.h"

namespace kvc {

// `options`: everything else that changes the result.
Provenance statistics_provenance(const std::string& kind, const Checkpoint& checkpoint,
                                 const TokenSet& tokens, const ComputePlace& place,
                                 Json options = Json::object());

}  // namespace kvc
