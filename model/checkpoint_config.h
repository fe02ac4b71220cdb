// The config of a checkpoint directory, and where its files store the text model's tensors.
#pragma once

#include "core/checkpoint.h"
#include "model/config.h"

namespace kvc {

// Prints once to stderr if the directory has Python code of its own (auto_map), which is never run.
ModelConfig read_model_config(const Checkpoint& checkpoint);
// The same for a checkpoint whose tensors match its config (check_tensors in model/weights.h).
ModelConfig read_checked_model_config(const Checkpoint& checkpoint);

}  // namespace kvc
