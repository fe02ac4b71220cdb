// --scope auto: chooses what is coded together.
#pragma once

#include "convert/coded/block_layout.h"

namespace kvc {

// The scope whose cache and factors together take the fewest bytes at settings.tokens_in_flight; all scopes are
// compared at the divergence of single heads at settings.kept_ratio. --prefer speed allows only single heads,
// balance allows groups only below a kept_ratio of 0.15, because each of their layers reads the whole group's codes.
LayerScopes choose_scope(const ModelConfig& config, const ConvertSettings& settings);

}  // namespace kvc
