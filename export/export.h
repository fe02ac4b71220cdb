// kvexport: a conversion as a HuggingFace directory.
//   factored  our runtime's format: the small cache. config.json has the source's keys, `model_type`
//             "kvconvert_<family>", and one object `kvconvert` {format, model_type, plan, report, provenance}.
//   folded    the original architecture with W' = B A dense: every engine loads it; saves no memory and shows
//             the exact quality of the factorisation alone.
#pragma once

#include <filesystem>
#include <string>

namespace kvc {

enum class ExportFormat { kFactored, kFolded, kBoth };

struct ExportOptions {
  std::filesystem::path checkpoint;
  std::filesystem::path conversion;  // directory that convert() wrote, or the conversion.h5 in it
  std::filesystem::path out;
  ExportFormat format = ExportFormat::kFactored;
  std::string factor_dtype = "float32";  // of the kvconvert.* tensors
  bool force = false;
};

void export_checkpoint(const ExportOptions& options);

}  // namespace kvc
