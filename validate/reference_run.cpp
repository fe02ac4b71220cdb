#include "validate/reference_run.h"

#include <cstring>
#include <span>
#include <system_error>

#include "core/error.h"
#include "core/hash.h"
#include "core/output.h"
#include "core/progress.h"
#include "core/provenance.h"
#include "core/safetensors.h"
#include "validate/evaluation_text.h"
#include "validate/report.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostJsonBytes = 1 << 20;

struct Part {
  const char* name;
  std::vector<at::Tensor> ReferenceLogits::*tensors;
};
constexpr Part kParts[] = {{"teacher_forced", &ReferenceLogits::teacher_forced},
                           {"continuation", &ReferenceLogits::continuation}};

std::string name_of(const Part& part, std::size_t row) {
  return fmt::format("{}.{}", part.name, row);
}

std::vector<TensorSource> sources_of(const ReferenceLogits& logits) {
  std::vector<TensorSource> sources;
  for (const Part& part : kParts) {
    const auto& rows = logits.*part.tensors;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const at::Tensor tensor = rows[row].to(at::kFloat).contiguous();
      sources.push_back({name_of(part, row), Dtype::kF32, tensor.sizes().vec(), [tensor] {
                           return std::span(static_cast<const std::byte*>(tensor.const_data_ptr()),
                                            tensor.nbytes());
                         }});
    }
  }
  return sources;
}

ReferenceLogits read_logits(const fs::path& path, std::size_t num_rows) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  ReferenceLogits logits;
  for (const Part& part : kParts) {
    for (std::size_t row = 0; row < num_rows; ++row) {
      const TensorInfo* info = file.find(name_of(part, row));
      KVC_CHECK(info != nullptr, "{}: has no tensor {}", path.string(), name_of(part, row));
      at::Tensor tensor = at::empty(info->shape, at::kFloat);
      const std::span<const std::byte> bytes = file.bytes(*info);
      std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
      (logits.*part.tensors).push_back(std::move(tensor));
    }
  }
  return logits;
}

bool has_room(const fs::path& directory, const ReferenceLogits& logits) {
  std::uintmax_t bytes = 0;
  for (const Part& part : kParts) {
    for (const at::Tensor& tensor : logits.*part.tensors) {
      bytes += tensor.nbytes();
    }
  }
  return kept_logits_bytes(directory) + bytes <= ReferenceRun::kMostBytes &&
         bytes <= fs::space(directory).available / 2;
}

}  // namespace

std::uintmax_t kept_logits_bytes(const fs::path& directory) {
  std::uintmax_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    bytes += entry.file_size();
  }
  return bytes;
}

Engine& ReferenceRun::engine() {
  if (!engine_) {
    EngineOptions engine_options;
    engine_options.dtype = options_.dtype;  // it caches what it computes, unrounded
    engine_ = Engine::load(options_.reference, engine_options);
  }
  return *engine_;
}

ReferenceLogits ReferenceRun::computed(const TokenRows& rows) {
  ModelRun run = run_rows(engine(), rows, options_.block_tokens);
  return {std::move(run.teacher_forced), std::move(run.continuation.logits)};
}

ReferenceLogits ReferenceRun::logits(const TokenRows& rows) {
  if (options_.reference_logits.empty()) {
    return computed(rows);
  }
  Sha256 content;
  for (const auto& row : rows) {
    content.update(std::as_bytes(std::span(row)));
    content.update(std::as_bytes(std::span("|")));
  }
  const fs::path file =
      file_of(fmt::format("{} {}", content.hex(), options_.block_tokens), ".safetensors");
  if (fs::exists(file)) {
    return read_logits(file, rows.size());
  }
  ReferenceLogits logits = computed(rows);
  if (has_room(options_.reference_logits, logits)) {
    try {
      replace_safetensors(file, sources_of(logits));
    } catch (const Error& error) {
      log_info(fmt::format("the original's logits are not kept: {}", error.what()));
    }
  }
  return logits;
}

Estimate ReferenceRun::calibration(const fs::path& tokens) {
  if (options_.reference_logits.empty()) {
    return calibration_nll(engine(), tokens);
  }
  const fs::path file = file_of(sha256_hex_of_file(tokens), ".json");
  if (fs::exists(file)) {
    const Json json = read_json(file, kMostJsonBytes);
    Estimate estimate{.mean = json["mean"].get<double>()};
    if (json["standard_error"].is_number()) {
      estimate.standard_error = json["standard_error"].get<double>();
    }
    return estimate;
  }
  const Estimate estimate = calibration_nll(engine(), tokens);
  write_file_atomically(file, dump_json(to_json(estimate)), true);
  return estimate;
}

fs::path ReferenceRun::file_of(const std::string& content, const char* ending) const {
  const std::string key =
      fmt::format("{} {} {} {}", kToolVersion, checkpoint_hash_, options_.dtype, content);
  return options_.reference_logits / (sha256_hex(key).substr(0, 16) + ending);
}

}  // namespace kvc
