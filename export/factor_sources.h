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

// A factor as the tensors that a directory holds of it:
//
//   factor                         --factor-dtype   tensors
//   vector (mean, steps)           any              float32
//   codes of a coded block         auto             as they are
//   matrix, rounded (.wide)        auto             int8, <matrix>.scale float32, <matrix>.low of its wide coefficients
//   matrix                         auto             float16 if the squared error of each row and column is at most a
//                                                   millionth, else float32
//   matrix with coefficients       int8             int8, <matrix>.scale float32
//   matrix without                 int8             float32
//   matrix                         another          that type
//
// "Rounded": the conversion measured that 8 bits do. `factors` must outlive the sources; files that these need lie in
// `scratch`, and `held` keeps the last tensor that was read, until the next one is.
std::vector<TensorSource> factor_sources(const FactorFile& factors,
                                         const FactorFile::Stored& factor,
                                         const std::string& factor_dtype,
                                         const std::filesystem::path& scratch,
                                         const std::shared_ptr<Held>& held);

}  // namespace kvc
