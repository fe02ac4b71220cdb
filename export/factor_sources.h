// Factors as the tensors of an exported directory.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "export/factor_file.h"
#include "export/held_source.h"

namespace kvc {

// A factor in the type that `factor_dtype` names (check_factor_dtype); vectors (means, steps) are in float32 always. Under auto, matrices are in 8 bits where the
// conversion says so; else in float16 where it holds every row and column with at most a millionth of squared error;
// otherwise in float32. `factors` must outlive the sources; files that these need lie in
// `scratch`.
std::vector<TensorSource> factor_sources(const FactorFile& factors,
                                         const FactorFile::Stored& factor,
                                         const std::string& factor_dtype,
                                         const std::filesystem::path& scratch,
                                         const std::shared_ptr<Held>& held);

}  // namespace kvc
