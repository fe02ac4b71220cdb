// Instructions for bfloat16 numbers that this processor has.
#pragma once

namespace kvc {

// Looked up once: a query takes tens of microseconds in a virtual machine.
bool has_bfloat16_products();  // AVX-512 BF16
bool has_bfloat16_amx();       // products of tiles (AMX), faster still, which oneDNN uses

// For tests of what runs without AVX-512 BF16.
void allow_avx512_bf16(bool allowed);

}  // namespace kvc
