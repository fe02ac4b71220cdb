#include "tests/bench/read_stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/read_stream.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

std::uint8_t read_all(const std::uint8_t* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  std::size_t i = 0;
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    a = hn::Xor(a, hn::LoadU(d, from + i));
    b = hn::Xor(b, hn::LoadU(d, from + i + lanes));
    c = hn::Xor(c, hn::LoadU(d, from + i + 2 * lanes));
    e = hn::Xor(e, hn::LoadU(d, from + i + 3 * lanes));
  }
  std::uint8_t sum = hn::GetLane(hn::Xor(hn::Xor(a, b), hn::Xor(c, e)));
  for (; i < bytes; ++i) {
    sum = static_cast<std::uint8_t>(sum ^ from[i]);
  }
  return sum;
}

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(read_all);

void read_stream(const std::uint8_t* from, std::size_t bytes) {
  volatile std::uint8_t kept = HWY_DYNAMIC_DISPATCH(read_all)(from, bytes);
  static_cast<void>(kept);
}

}  // namespace kvc
#endif  // HWY_ONCE
