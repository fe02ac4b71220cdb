#include "model/token_input.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace kvc {
namespace {

bool looks_like_text(const std::filesystem::path& path) {
  constexpr std::array kExtensions = {".txt", ".jsonl", ".h5"};
  return std::find(kExtensions.begin(), kExtensions.end(), path.extension().string()) !=
             kExtensions.end() ||
         std::filesystem::exists(path);
}

}  // namespace

CalibrationSources parse_calibration_sources(const std::vector<std::string>& words) {
  CalibrationSources sources;
  for (const std::string& word : words) {
    if (word == "self") {
      sources.self = true;
    } else if (word == "builtin") {
      sources.builtin = true;
    } else {
      KVC_CHECK_USAGE(looks_like_text(word),
                      "--calibration {}: expected self, builtin, or a file that ends in .txt, "
                      ".jsonl or .h5",
                      word);
      sources.files.emplace_back(word);
    }
  }
  return sources;
}

}  // namespace kvc
