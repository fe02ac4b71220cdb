// MKL, which LibTorch's CPU build contains, picks its AVX-512 kernels only where this function says that
// the processor is Intel's; elsewhere it falls back to AVX2, at half the speed of matrix products on AMD's
// AVX-512 processors. Which instructions exist MKL still asks the processor itself. This definition takes
// precedence over the library's in every program that links it.
extern "C" int mkl_serv_intel_cpu_true() { return 1; }
