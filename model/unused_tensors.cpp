#include "model/unused_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <span>
#include <string_view>

#include "core/error.h"
#include "model/tensor_names.h"
#include "model/weights.h"

namespace kvc {
namespace {

// Recomputed or copied from other tensors by every loader: rotary buffers of old files, and a head
// stored although it is tied to the embedding.
bool is_redundant(const std::string& name, const ModelConfig& config) {
  return name.ends_with("rotary_emb.inv_freq") ||
         (name == head_name(config) && config.tied_embeddings);
}

// "lm_head." of "lm_head.weight": where a bias would be, too.
std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.') + 1); }

bool is_inside(const std::string& name, const ModelConfig& config) {
  const std::string layers = config.tensor_prefix + "layers.";
  if (name.starts_with(layers)) {
    std::uint64_t layer = 0;
    const char* first = name.data() + layers.size();
    const auto parsed = std::from_chars(first, name.data() + name.size(), layer);
    return parsed.ec != std::errc() || layer < static_cast<std::uint64_t>(config.num_layers);
  }
  return name.starts_with(module_of(embedding_name(config))) ||
         name.starts_with(module_of(head_name(config))) ||
         name.starts_with(config.tensor_prefix + "norm.");
}

}  // namespace

UnusedTensors unused_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::set<std::string> used;
  for (const NamedShape& tensor : model_tensors(config)) {
    used.insert(tensor.name);
  }
  UnusedTensors unused;
  for (const std::string& name : checkpoint.tensor_names()) {
    if (!used.contains(name) && !name.starts_with("kvconvert.") && !is_redundant(name, config)) {
      (is_inside(name, config) ? unused.foreign : unused.carried).push_back(name);
    }
  }
  return unused;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMaxListed = 12;
  const std::size_t shown = std::min(names.size(), kMaxListed);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

namespace {

// A tied head may be stored again. Where it has other numbers, versions of transformers disagree on which they read.
void check_tied_head(const Checkpoint& checkpoint, const ModelConfig& config) {
  const std::string head = head_name(config), embedding = embedding_name(config);
  if (!config.tied_embeddings || !checkpoint.contains(head) || !checkpoint.contains(embedding)) {
    return;
  }
  const std::span<const std::byte> own = checkpoint.bytes(head),
                                   shared = checkpoint.bytes(embedding);
  KVC_CHECK(own.size() == shared.size() && std::memcmp(own.data(), shared.data(), own.size()) == 0,
            "{}: {} differs from {}, though config.json ties them (tie_word_embeddings); set it to "
            "false if the model has both, or remove the tensor",
            checkpoint.directory().string(), head, embedding);
}

}  // namespace

void check_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                   const std::vector<std::string>& replaced) {
  check_tied_head(checkpoint, config);
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
