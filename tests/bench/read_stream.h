// The ceiling of kernels that stream memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc {

// Reads every byte once, in order.
void read_stream(const std::uint8_t* from, std::size_t bytes);

}  // namespace kvc
