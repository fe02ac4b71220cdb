// What the operating system says of this process's memory.
#pragma once

#include <cstdint>

namespace kvc::testing {

// Bytes of anonymous memory that are resident, counted page by page. Unlike VmRSS, the sum has no pages of mapped
// files, which come and go as the machine needs memory, and no counters that lag behind.
std::int64_t anonymous_bytes();

}  // namespace kvc::testing
