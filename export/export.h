// kvexport: a conversion as a HuggingFace directory.
//   factored  our runtime's format: the small cache. Original tensors byte for byte (without k_proj
//   and
//             v_proj weights where a split group replaces them) beside the kvconvert.* factors.
//             config.json has the source's keys, `model_type` "kvconvert_<family>", and one object
//             `kvconvert` {format, family, factor_dtype, plan, settings, report,
//             calibration_hashes, provenance}.
//   folded    the original architecture with W' = B A dense: every engine loads it; saves no memory
//   and shows
//             the exact quality of the factorisation alone. Everything else is the source's, byte
//             for byte.
//   mla       DeepSeek-V2's architecture, fitted to calibration text (export/mla/): no conversion is needed,
//             and kvconvert alone writes it, because it judges the result.
// Tensors are streamed: a checkpoint never has to fit in memory.
#pragma once

#include <filesystem>
#include <string>

#include "core/checkpoint.h"
#include "core/kv_plan.h"

namespace kvc {

enum class ExportFormat { kFactored, kFolded, kBoth, kMla };
// "factored", "folded", "both", "mla"; UsageError for anything else.
ExportFormat parse_export_format(const std::string& name);

struct ExportOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path conversion;  // directory that convert() wrote, or the conversion.h5 in it
  std::filesystem::path out;         // kBoth: holds folded/ and factored/
  ExportFormat format = ExportFormat::kFactored;
  std::string factor_dtype = "auto";  // of the kvconvert.* tensors (check_factor_dtype)
  bool force = false;
};

// Error for a checkpoint that is a conversion already.
void check_original(const Checkpoint& checkpoint);
// Error when the format cannot express the plan.
void check_exportable(const KvPlan& plan, ExportFormat format);
// Error when the conversion belongs to another checkpoint. `out` appears complete or not at all.
void export_checkpoint(const ExportOptions& options);
// What it wrote: {out, format}, and for a factored directory {factor_dtype, factor_bytes, factors_sha256}.
Json export_summary(const ExportOptions& options);
// The same into the existing, empty `directory`; options.out and options.force are not used.
void export_into(const ExportOptions& options, const std::filesystem::path& directory);

}  // namespace kvc
