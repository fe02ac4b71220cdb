// What kvrun says of a run: JSON on standard output, statistics on standard error.
#pragma once

#include <string>

#include "core/json.h"
#include "runtime/engine.h"
#include "runtime/generate.h"
#include "runtime/prompts.h"

namespace kvc {

// {"tokens", "text", "kv": {"bytes", "original_bytes", "kept_ratio", "tokens"}, "timing"}; for a
// batch tokens, text and kv are lists.
Json run_json(const Engine& engine, const Prompts& prompts, const GenerateResult& result,
              double load_seconds);
// Times, rates, weights and KV bytes by segment, one line each.
std::string run_statistics(const Engine& engine, const GenerateResult& result, double load_seconds);

}  // namespace kvc
