// The config of a checkpoint directory, together with where its files keep the text model's tensors.
#pragma once

#include "core/checkpoint.h"
#include "model/config.h"

namespace kvc {

// Says once on stderr where the directory brings Python code of its own (auto_map), which is never run.
ModelConfig read_model_config(const Checkpoint& checkpoint);
// The same of a checkpoint whose tensors are those of its config (check_tensors in model/weights.h).
ModelConfig read_checked_model_config(const Checkpoint& checkpoint);

}  // namespace kvc
