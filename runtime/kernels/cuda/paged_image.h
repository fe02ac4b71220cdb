// The arrays that PagedBlocks names by their places (runtime/kernels/cuda/paged_tokens.h), one after the other in one image
// of bytes for a GPU's memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace kvc {

class PagedImage {
 public:
  PagedImage() : bytes_(kAlignment) {}  // place 0 stands for nothing

  // Copies `count` numbers, and says where they lie, in bytes from the image's start.
  template <class T>
  std::int64_t add(const T* numbers, std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>, "an image is bytes");
    const std::size_t place = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(place + count * sizeof(T));
    if (count != 0) {
      std::memcpy(bytes_.data() + place, numbers, count * sizeof(T));
    }
    return static_cast<std::int64_t>(place);
  }
  template <class T>
  std::int64_t add(const std::vector<T>& numbers) {
    return add(numbers.data(), numbers.size());
  }

  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 16;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace kvc
