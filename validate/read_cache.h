// What a row's tokens are scored through: the text may be too short for a cache to be compressed before its end.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/engine.h"

namespace kvc {

// Bytes of the cache that the last scored token of a row of `length` tokens is predicted from, over those of the `original`'s cache of
// these tokens. By forecast: where the text decides how many tokens merge, as evenly spread. Nothing for an engine that
// stores what the original does.
std::optional<double> read_ratio(const Engine& engine, const KvPlan& original, std::int64_t length,
                                 std::int64_t block_tokens);

}  // namespace kvc
