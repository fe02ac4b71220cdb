// The JSON files of an exported directory.
#pragma once

#include <filesystem>

#include "core/checkpoint.h"
#include "core/conversion_file.h"
#include "core/json.h"
#include "model/config.h"

namespace kvc {

// Removes keys that make a loader run other code or pick another attention implementation, at any
// depth: what a source may carry and an export never does. True if there were any.
bool strip_unsafe_keys(Json& json);

// The source's keys in their order with `model_type` "kvconvert_<family>", and last the `kvconvert`
// object.
Json factored_config(const Checkpoint& checkpoint, const ModelConfig& config,
                     const Conversion& conversion, const std::string& factor_dtype);

// Copies config.json (folded; factored ones come from factored_config) and the companion files of
// `checkpoint`. Bytes are the source's unless a key has to go. With `small_cache`,
// generation_config.json loses cache_implementation: static and offloaded caches cannot hold
// latents.
void write_folded_config(const Checkpoint& checkpoint, const std::filesystem::path& directory);
void copy_companion_files(const Checkpoint& checkpoint, const std::filesystem::path& directory,
                          bool small_cache);
// Error for files that copy_companion_files() would refuse.
void check_companion_files(const Checkpoint& checkpoint);

}  // namespace kvc
