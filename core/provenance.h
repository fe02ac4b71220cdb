// Origin of an artifact, stored in every HDF5 file. A stage refuses an artifact of another
// checkpoint, and the pipeline reuses one only if its whole provenance matches.
#pragma once

#include <string>

#include "core/hdf5.h"
#include "core/json.h"

namespace kvc {

inline constexpr const char* kToolVersion = "0.1.0";

struct Provenance {
  std::string kind;               // "tokens", "calibration", "fisher", "conversion"
  std::string checkpoint_hash;    // Checkpoint::hash(); for tokens: the tokenizer hash
  std::string tokens_hash;        // TokenSet::hash(); empty if no tokens were read
  Json options = Json::object();  // everything that changes the result, seed included
  std::string tool_version = kToolVersion;

  friend bool operator==(const Provenance&, const Provenance&) = default;
};

void write_provenance(Hdf5Writer& file, const Provenance& provenance);
// Throws Error when the file is not an artifact of this project.
Provenance read_provenance(const Hdf5Reader& file);
// Throws Error "<file>: computed for another checkpoint ..." on a mismatch of kind or checkpoint.
void check_provenance(const Provenance& found, const std::string& kind,
                      const std::string& checkpoint_hash, const std::filesystem::path& file);
// True when `path` is a complete artifact whose provenance equals `expected` (resume).
bool artifact_matches(const std::filesystem::path& path, const Provenance& expected);

}  // namespace kvc
