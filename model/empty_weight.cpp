#include "model/empty_weight.h"

#include <sys/mman.h>

#include <cstdint>
#include <numeric>

#include "core/error.h"

namespace kvc {

at::Tensor empty_weight(at::IntArrayRef sizes, at::ScalarType type) {
  constexpr std::size_t kHugePage = std::size_t{1} << 21;
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  if (bytes < 2 * kHugePage) {
    return at::empty(sizes, at::TensorOptions(type));
  }
  const std::size_t mapped = bytes + kHugePage;  // so that a boundary can be chosen
  void* memory =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
  KVC_CHECK(memory != MAP_FAILED, "no memory for weights of {} bytes", bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  void* first = reinterpret_cast<void*>((address + kHugePage - 1) / kHugePage * kHugePage);
#ifdef MADV_HUGEPAGE
  // Whole ones only: what follows takes no more memory than it fills. Where this fails, all is as without.
  madvise(first, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return at::from_blob(
      first, sizes, [memory, mapped](void*) { munmap(memory, mapped); }, at::TensorOptions(type));
}

}  // namespace kvc
