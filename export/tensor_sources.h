// The tensors of an exported directory as sources that are read when they are written.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/kv_plan.h"
#include "core/safetensors.h"
#include "export/factor_file.h"
#include "export/held_source.h"
#include "model/config.h"

namespace kvc {

// k_proj and v_proj weights that the plan's split groups replace. Rows of a tensor that holds more stay
// in it, unread.
std::vector<std::string> replaced_weights(const ModelConfig& config, const KvPlan& plan);

// Tensors of the checkpoint but the `left_out` ones, byte for byte. `checkpoint` must outlive the sources.
std::vector<TensorSource> other_tensors(const Checkpoint& checkpoint,
                                        const std::vector<std::string>& left_out,
                                        const std::shared_ptr<Held>& held);

// Original tensors but the replaced ones, and the factors in the type that `factor_dtype` asks for (check_factor_dtype).
// The arguments must outlive the sources; files that these need lie in `scratch`.
std::vector<TensorSource> factored_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                           const KvPlan& plan, const FactorFile& factors,
                                           const std::string& factor_dtype,
                                           const std::filesystem::path& scratch);

// Original tensors, with k_proj and v_proj of every latent layer replaced by B A: the product in
// float64, cast once to the type of the weight it replaces.
std::vector<TensorSource> folded_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                         const KvPlan& plan, const FactorFile& factors);

}  // namespace kvc
