#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "core/checkpoint.h"
#include "core/output.h"
#include "core/progress.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

// The tokenizer's, generation's, and those of a multimodal model's processor.
constexpr std::array<std::string_view, 15> kNames = {"added_tokens.json",
                                                     "chat_template.jinja",
                                                     "chat_template.json",
                                                     "generation_config.json",
                                                     "merges.txt",
                                                     "preprocessor_config.json",
                                                     "processor_config.json",
                                                     "special_tokens_map.json",
                                                     "spiece.model",
                                                     "tokenizer.json",
                                                     "tokenizer.model",
                                                     "tokenizer_config.json",
                                                     "video_preprocessor_config.json",
                                                     "vocab.json",
                                                     "vocab.txt"};

constexpr std::array<std::string_view, 6> kLicenceNames = {"licence", "license",    "copying",
                                                           "notice",  "use_policy", "usage_policy"};

// Endings that are never copied whatever the name: weights, code.
constexpr std::array<std::string_view, 11> kRefusedEndings = {
    ".bin",  ".pt",   ".pth", ".ckpt", ".h5",         ".msgpack",
    ".gguf", ".onnx", ".py",  ".so",   ".safetensors"};

// Files that engines read by these names: copied also where a user assembled a checkpoint of links.
bool is_named(const std::string& name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Any text file may have such a name.
bool is_licence(const std::string& name) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool licence =
      std::any_of(kLicenceNames.begin(), kLicenceNames.end(),
                  [&](std::string_view start) { return lower.starts_with(start); });
  const bool refused = std::any_of(kRefusedEndings.begin(), kRefusedEndings.end(),
                                   [&](std::string_view end) { return lower.ends_with(end); });
  return licence && !refused;
}

// True if a link leads to a file outside the checkpoint, which its owner may not mean to publish. The hub's cache is part of
// it: there every file is a link to one in ../../blobs.
bool leads_outside(const fs::path& directory, const fs::path& file) {
  std::error_code error;
  const fs::path root = fs::canonical(directory, error);
  const fs::path target = fs::canonical(directory / file, error);
  const fs::path blobs = fs::weakly_canonical(root.parent_path().parent_path() / "blobs", error);
  if (error || is_within(target, root) || target.parent_path() == blobs) {
    return false;
  }
  log_warning_once(fmt::format("{}: leads to {}, outside the checkpoint, and is not copied",
                               (directory / file).string(), target.string()));
  return true;
}

}  // namespace

std::vector<fs::path> Checkpoint::companion_files() const {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_)) {
    const fs::path name = entry.path().filename();
    if (entry.is_regular_file() &&
        (is_named(name.string()) ||
         (is_licence(name.string()) && !leads_outside(directory_, name)))) {
      files.push_back(name);
    }
  }
  const fs::path templates = "additional_chat_templates";
  if (fs::is_directory(directory_ / templates)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(directory_ / templates)) {
      const fs::path name = templates / entry.path().filename();
      if (entry.is_regular_file() && name.extension() == ".jinja" &&
          !leads_outside(directory_, name)) {
        files.push_back(name);
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace kvc
