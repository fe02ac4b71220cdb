// Files of sums over tokens: writing one, and making one of several, as if one run had seen all their tokens.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/hdf5.h"
#include "core/provenance.h"

namespace kvc {

// `out` appears complete, with its provenance and what `fill` adds; large scratch files go to `scratch`.
void write_sums(
    const std::filesystem::path& out, bool force, const Provenance& provenance,
    const std::function<void(Hdf5Writer& file, const std::filesystem::path& scratch)>& fill);
// A float64 tensor of any device as a dataset.
void write_tensor(Hdf5Writer& file, const std::string& path, const at::Tensor& tensor,
                  const std::vector<std::string>& dimensions);

struct SumFiles {
  std::string kind;                                // of their provenance
  std::vector<std::string> groups{};               // of groups whose datasets add up
  std::vector<std::string> totals{};               // float64 datasets that add up
  std::vector<std::string> counts{"/num_tokens"};  // int64 ones of one number
  std::string name{};                              // in messages; empty: the kind
};
// Error where files differ in checkpoint, kind, options (but the seed) or shapes.
void add_files(const std::vector<std::filesystem::path>& files, const SumFiles& what,
               const std::filesystem::path& out, bool force);

}  // namespace kvc
