#include <set>

#include "core/error.h"
#include "model/tensor_names.h"
#include "model/unused_tensors.h"
#include "model/weights.h"

namespace kvc {

void check_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                   const std::vector<std::string>& replaced) {
  const std::set<std::string> optional(replaced.begin(), replaced.end());
  std::vector<std::string> missing;
  for (const NamedShape& tensor : model_tensors(config)) {
    if (checkpoint.contains(tensor.name)) {
      scalar_type(checkpoint.info(tensor.name, tensor.shape).dtype, tensor.name);
    } else if (!optional.contains(tensor.name)) {
      missing.push_back(tensor.name);
    }
  }
  const std::string directory = checkpoint.directory().string();
  KVC_CHECK(missing.empty(), "{}: {} tensors of the {} architecture are missing: {}", directory,
            missing.size(), config.arch->model_type, listed(missing));
  const std::vector<std::string> foreign = unused_tensors(checkpoint, config).foreign;
  KVC_CHECK(foreign.empty(), "{}: {} tensors are no part of the {} architecture as configured: {}",
            directory, foreign.size(), config.arch->model_type, listed(foreign));
}

}  // namespace kvc
