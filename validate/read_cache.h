// How small the cache is that a row's last scored token is predicted from: a short row is scored before anything is
// compressed.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/engine.h"

namespace kvc {

// Bytes of that cache in a row of `length` tokens over those of the `original`'s cache of these tokens. By forecast: where
// the text decides how many tokens merge, as evenly spread. Nothing for an engine that stores what the original does.
std::optional<double> read_ratio(const Engine& engine, const KvPlan& original, std::int64_t length,
                                 std::int64_t block_tokens);

}  // namespace kvc
