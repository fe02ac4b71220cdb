#include "model/checkpoint_config.h"

#include "model/expert_tensors.h"
#include "model/tensor_names.h"
#include "model/weights.h"

namespace kvc {

ModelConfig read_model_config(const Checkpoint& checkpoint) {
  ModelConfig config =
      parse_model_config(checkpoint.config(), (checkpoint.directory() / "config.json").string());
  if (stores_stacked_experts(checkpoint, config)) {
    config.moe->stacked = true;
  }
  if (config.arch->nested_text) {
    // Which of them a file has depends on the version that wrote it.
    for (const char* prefix : {"language_model.model.", "model.language_model.", "model."}) {
      ModelConfig other = config;
      other.tensor_prefix = prefix;
      if (checkpoint.contains(embedding_name(other))) {
        return other;
      }
    }
  }
  return config;
}

ModelConfig read_checked_model_config(const Checkpoint& checkpoint) {
  ModelConfig config = read_model_config(checkpoint);
  check_tensors(checkpoint, config);
  return config;
}

}  // namespace kvc
