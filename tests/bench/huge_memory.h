// Memory in huge pages, as weights and caches of the runtime are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvc {

// `bytes` bytes of `value`; of small pages where the system has no others.
std::shared_ptr<std::uint8_t> huge_memory(std::size_t bytes, std::uint8_t value);

}  // namespace kvc
