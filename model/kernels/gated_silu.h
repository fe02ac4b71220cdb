// silu(gate) * up in bfloat16, each of the two steps rounded, on the CPU. Needs no torch.
#pragma once

#include <cstdint>

namespace kvc {

// Whether this processor has the instructions (AVX-512 BF16); otherwise it is the reference.
bool gated_silu_is_fast();
void gated_silu(const std::uint16_t* gate, const std::uint16_t* up, std::int64_t count,
                std::uint16_t* out);
void gated_silu_reference(const std::uint16_t* gate, const std::uint16_t* up, std::int64_t count,
                          std::uint16_t* out);

}  // namespace kvc
