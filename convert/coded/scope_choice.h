// --scope auto: what is coded together where nobody says so.
#pragma once

#include "convert/coded/block_layout.h"

namespace kvc {

// The scope whose cache and factors together take the fewest bytes at settings.tokens_in_flight, all scopes at the
// divergence that single heads have at settings.kept_ratio. --prefer speed allows single heads alone, balance groups
// only below a kept_ratio of 0.15, since each of their layers reads the code of all.
LayerScopes choose_scope(const ModelConfig& config, const ConvertSettings& settings);

}  // namespace kvc
