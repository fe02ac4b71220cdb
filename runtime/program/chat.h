// kvrun --chat: a conversation at the terminal, over the lines of a pipe, or with one prompt.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/program/run.h"

namespace kvc {

void chat(const RunOptions& options);

}  // namespace kvc
