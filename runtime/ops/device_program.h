// What an engine's op launches on a GPU, in order: those kernels alone, so that the op library links no others.
#pragma once

#include <variant>
#include <vector>

#include "runtime/kernels/cuda/attention_codes.h"
#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/paged_tokens.h"

namespace kvc {

using DeviceLaunch = std::variant<AttendOpen, CodedAttention, CombinePartials, EncodeTokens,
                                  PlacePages, ProjectValues, RankAttention, ReadTokens, StoreCodes>;
using DeviceProgram = std::vector<DeviceLaunch>;

}  // namespace kvc
