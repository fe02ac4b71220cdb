// kvrun --chat: a conversation at the terminal, over lines of a pipe, or of one prompt.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/run.h"

namespace kvc {

void chat(const RunOptions& options);

}  // namespace kvc
