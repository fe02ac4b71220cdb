// Instructions of this processor of which no compiled target of Highway knows.
#pragma once

namespace kvc {

// AVX-512 VNNI and VBMI: dot products of integers, bytes permuted and shifted at will. Looked up once: asking
// the processor takes tens of microseconds in a virtual machine.
bool has_avx512_vnni();

// For tests of kernels without them.
void allow_avx512_vnni(bool allowed);

}  // namespace kvc
