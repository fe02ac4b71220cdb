// Instructions of this processor of which no compiled target of Highway knows.
#pragma once

namespace kvc {

// Looked up once: asking the processor takes tens of microseconds in a virtual machine.
bool has_avx512_vnni();  // and VBMI: dot products of integers, bytes permuted and shifted at will
bool has_avx512_bf16();  // dot products of bfloat16 numbers

// For tests of kernels without them.
void allow_special_instructions(bool allowed);

}  // namespace kvc
