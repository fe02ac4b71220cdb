// What an engine's op launches on a GPU, in order: those kernels alone, so that the op library links no others.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/kernels/cuda/attention_codes.h"
#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/paged_tokens.h"

namespace kvc {

using DeviceLaunch =
    std::variant<AttendOpen, CodedAttention, CombinePartials, EncodeTokens, NumberAttention,
                 PlacePages, ProjectValues, RankAttention, ReadTokens, StoreCodes>;
using DeviceProgram = std::vector<DeviceLaunch>;

// Memory that launches of one op share, from a start that is aligned to 256 bytes; a null start counts bytes alone.
class DeviceScratch {
 public:
  explicit DeviceScratch(void* start) : start_(static_cast<std::uint8_t*>(start)) {}

  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t at = bytes_;
    bytes_ += (count * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
    return start_ == nullptr ? nullptr : reinterpret_cast<T*>(start_ + at);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::uint8_t* start_;
  std::int64_t bytes_ = 0;
};

}  // namespace kvc
