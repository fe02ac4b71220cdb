// Files of sums over tokens become one, as if one run had seen all their tokens.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvc {

struct SumFiles {
  std::string kind;                        // of their provenance
  std::vector<std::string> groups;         // of groups whose datasets add up
  std::vector<std::string> equal_options;  // of their provenance, which all must share
};

// Error where files differ in checkpoint, kind, options or shapes. Also adds /num_tokens.
void add_files(const std::vector<std::filesystem::path>& files, const SumFiles& what,
               const std::filesystem::path& out, bool force);

}  // namespace kvc
