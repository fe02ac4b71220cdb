// Sources of calibration text, as --calibration names them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvc {

struct CalibrationSources {
  bool self = false;                           // "self": the model writes it (runtime/self_text.h)
  bool builtin = false;                        // "builtin": the text inside the program
  std::vector<std::filesystem::path> files{};  // .txt, .jsonl or tokens.h5
};

// Every word is "self", "builtin" or a file ("./self" is a file). UsageError for any other word: no such file,
// and no suffix of a text file.
CalibrationSources parse_calibration_sources(const std::vector<std::string>& words);

}  // namespace kvc
