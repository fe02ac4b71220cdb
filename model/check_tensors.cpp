#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "model/weights.h"

namespace kvc {
namespace {

// Present in some files without being weights of their own: old rotary tables, and a head stored
// although it is tied to the embedding.
bool is_redundant(const std::string& name, const ModelConfig& config) {
  return name.ends_with("rotary_emb.inv_freq") ||
         (name == "lm_head.weight" && config.tied_embeddings);
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMaxListed = 12;
  const std::size_t shown = std::min(names.size(), kMaxListed);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

}  // namespace

void check_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                   const std::vector<std::string>& replaced) {
  const std::set<std::string> optional(replaced.begin(), replaced.end());
  std::set<std::string> known;
  std::vector<std::string> missing, unexpected;
  for (const NamedShape& tensor : model_tensors(config)) {
    known.insert(tensor.name);
    if (checkpoint.contains(tensor.name)) {
      scalar_type(checkpoint.info(tensor.name, tensor.shape).dtype, tensor.name);
    } else if (!optional.contains(tensor.name)) {
      missing.push_back(tensor.name);
    }
  }
  for (const std::string& name : checkpoint.tensor_names()) {
    if (!known.contains(name) && !name.starts_with("kvconvert.") && !is_redundant(name, config)) {
      unexpected.push_back(name);
    }
  }
  const std::string directory = checkpoint.directory().string();
  KVC_CHECK(missing.empty(), "{}: {} tensors of the {} architecture are missing: {}", directory,
            missing.size(), config.arch->model_type, listed(missing));
  KVC_CHECK(unexpected.empty(),
            "{}: {} tensors are no part of the {} architecture as configured: {}", directory,
            unexpected.size(), config.arch->model_type, listed(unexpected));
}

}  // namespace kvc
