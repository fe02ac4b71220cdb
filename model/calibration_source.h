// Where calibration text comes from, as --calibration names it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvc {

struct CalibrationSources {
  bool self = false;                           // "self": the model writes it (runtime/self_text.h)
  bool builtin = false;                        // "builtin": the text that travels in the program
  std::vector<std::filesystem::path> files{};  // .txt, .jsonl or tokens.h5
};

// Every word is "self", "builtin" or a file ("./self" is a file). UsageError for a word that is none of them: no
// such file is there, nor does the name end as one of a text does.
CalibrationSources parse_calibration_sources(const std::vector<std::string>& words);

}  // namespace kvc
