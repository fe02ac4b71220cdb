#include "model/config.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "core/json.h"
#include "core/progress.h"
#include "model/tensor_names.h"
#include "model/weights.h"

namespace kvc {
namespace {

// Every stage asks again, and the file may be large: it is read once.
bool tokenizer_names_code(const std::filesystem::path& directory) {
  static std::mutex mutex;
  static std::map<std::filesystem::path, bool> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(directory); found != known.end()) {
    return found->second;
  }
  const std::filesystem::path file = directory / "tokenizer_config.json";
  return known[directory] = std::filesystem::exists(file) && read_json(file).contains("auto_map");
}

// Many publishers ship the Python of an architecture that loaders have since learned.
void note_remote_code(const Checkpoint& checkpoint, const ModelConfig& config) {
  const bool ours = checkpoint.config().contains("kvconvert");
  if (!ours &&
      (checkpoint.config().contains("auto_map") || tokenizer_names_code(checkpoint.directory()))) {
    log_info_once(fmt::format(
        "{}: \"auto_map\" names Python code of the checkpoint, which is neither run nor copied; "
        "the built-in {} is used",
        checkpoint.directory().string(), config.arch->model_type));
  }
}

// Which of them a file has depends on the version that wrote it.
std::string text_prefix(const Checkpoint& checkpoint, ModelConfig config) {
  const std::string own = config.tensor_prefix;
  for (const char* prefix : {"language_model.model.", "model.language_model.", "model."}) {
    config.tensor_prefix = prefix;
    if (checkpoint.contains(embedding_name(config))) {
      return prefix;
    }
  }
  return own;
}

std::string name_of(Dtype dtype, const std::string& otherwise) {
  switch (dtype) {
    case Dtype::kF64:
      return "float64";
    case Dtype::kF32:
      return "float32";
    case Dtype::kBF16:
      return "bfloat16";
    case Dtype::kF16:
      return "float16";
    default:
      return otherwise;
  }
}

}  // namespace

ModelConfig read_model_config(const Checkpoint& checkpoint) {
  ModelConfig config =
      parse_model_config(checkpoint.config(), (checkpoint.directory() / "config.json").string());
  note_remote_code(checkpoint, config);
  if (stores_stacked_experts(checkpoint, config)) {
    config.moe->stacked = true;
  }
  if (!config.arch->nested_text.empty()) {
    config.tensor_prefix = text_prefix(checkpoint, config);
  }
  if (checkpoint.contains(embedding_name(config))) {
    config.dtype = name_of(checkpoint.info(embedding_name(config)).dtype, config.dtype);
  }
  return config;
}

ModelConfig read_checked_model_config(const Checkpoint& checkpoint) {
  ModelConfig config = read_model_config(checkpoint);
  check_tensors(checkpoint, config);
  return config;
}

}  // namespace kvc
