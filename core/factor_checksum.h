// SHA-256 of what a conversion adds to a checkpoint, which its config.json states: damage that leaves every shape as it
// was would otherwise only make the model worse.
#pragma once

#include <string>

#include "core/checkpoint.h"

namespace kvc {

inline constexpr const char* kFactorChecksum =
    "factors_sha256";  // key of config.json's `kvconvert`

// Over the tensors whose name begins with "kvconvert.", by name: the name, a zero byte and the data of each.
std::string factor_checksum(const Checkpoint& checkpoint);
// Error if config.json states another one. A checkpoint without any is not checked.
void check_factors(const Checkpoint& checkpoint);

}  // namespace kvc
