#include "tests/runtime/kernels/cuda/emulated_backend.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace kvc::testing {

void emulate_launch(const KernelLaunch& launch, ThreadOrder order) {
  const LaunchError error =
      std::visit([&](const auto& params) { return launch_emulated(params, order); }, launch);
  if (!error.empty()) {
    throw std::runtime_error(error);
  }
}

void* EmulatedBackend::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  memory_.push_back(std::make_unique<std::uint8_t[]>(bytes + kAlignment));
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.back().get());
  return memory_.back().get() + (kAlignment - address % kAlignment) % kAlignment;
}

void EmulatedBackend::write(void* to, const void* from, std::size_t bytes) {
  std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
}

}  // namespace kvc::testing
