#include "core/factor_checksum.h"

#include <string_view>

#include "core/error.h"
#include "core/hash.h"
#include "core/interrupt.h"
#include "core/mapped_file.h"

namespace kvc {

std::string factor_checksum(const Checkpoint& checkpoint) {
  Sha256 hash;
  for (const std::string& name : checkpoint.tensor_names()) {  // sorted
    check_interrupt();
    if (name.rfind("kvconvert.", 0) == 0) {
      const auto bytes = checkpoint.bytes(name);
      hash.update(std::string_view(name.c_str(), name.size() + 1));
      hash.update(bytes);
      release_pages(bytes);
    }
  }
  return hash.hex();
}

void check_factors(const Checkpoint& checkpoint) {
  const Json& config = checkpoint.config();
  if (!config.contains("kvconvert") || !config.at("kvconvert").contains(kFactorChecksum)) {
    return;
  }
  const Json& stated = config.at("kvconvert").at(kFactorChecksum);
  const std::string found = factor_checksum(checkpoint);
  KVC_CHECK(
      stated == found,
      "{}: the tensors kvconvert.* in model*.safetensors are damaged: SHA-256 {} expected, {} "
      "found; copy the directory again, or export the conversion again",
      checkpoint.directory().string(),
      stated.is_string() ? stated.get<std::string>() : stated.dump(), found);
}

}  // namespace kvc
