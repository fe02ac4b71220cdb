// The original's side of a comparison. Its logits may stay in a directory, so that it is computed once for many
// candidates.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "validate/model_run.h"
#include "validate/validate.h"

namespace kvc {

// A batch, as run_rows() gives it.
struct ReferenceLogits {
  std::vector<at::Tensor> teacher_forced, continuation;  // [num_rows], float32
};

// Bytes of the files in a directory of kept logits.
std::uintmax_t kept_logits_bytes(const std::filesystem::path& directory);

// Refers to its options.
class ReferenceRun {
 public:
  // `options`: every one settled; logits stay in the directory options.reference_logits unless it is empty, as many as
  // kMostBytes hold and half of its disk has room for. `checkpoint_hash`: of options.reference.
  ReferenceRun(const ValidateOptions& options, const std::string& checkpoint_hash)
      : options_(options), checkpoint_hash_(checkpoint_hash) {}
  static constexpr std::uintmax_t kMostBytes = std::uintmax_t{16} << 30;

  // Loaded when it is first needed.
  Engine& engine();
  ReferenceLogits logits(const TokenRows& rows);
  // calibration_nll() of this model.
  Estimate calibration(const std::filesystem::path& tokens);

 private:
  ReferenceLogits computed(const TokenRows& rows);
  // Where what depends on the model and on `content` is kept.
  std::filesystem::path file_of(const std::string& content, const char* ending) const;

  const ValidateOptions& options_;
  std::string checkpoint_hash_;
  std::optional<Engine> engine_;
};

}  // namespace kvc
