// Instructions of this processor that no compiled Highway target covers.
#pragma once

namespace kvc {

// Looked up once: a query takes tens of microseconds in a virtual machine.
bool has_avx512_vnni();  // and VBMI: dot products of integers, bytes permuted and shifted at will
bool has_avx512_bf16();  // dot products of bfloat16 numbers

// Disables them, for tests.
void allow_special_instructions(bool allowed);

}  // namespace kvc
