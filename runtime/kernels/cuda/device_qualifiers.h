// Marks of functions that GPU kernels are made of. C++17, as all headers here that CUDA files include.
//
//   KVC_HOST_DEVICE   arithmetic: runs anywhere
//   KVC_DEVICE        parts of kernels, written for a Thread: the GPU's (device_thread.cuh) or, in tests, the
//                     CPU's (tests/runtime/kernels/cuda/emulated_thread.h)
#pragma once

#ifdef __CUDACC__
#define KVC_HOST_DEVICE __host__ __device__ __forceinline__
#define KVC_DEVICE __device__ __forceinline__
#else
#define KVC_HOST_DEVICE inline
#define KVC_DEVICE inline
#endif

// Before a loop whose counter must be known to the compiler, as registers have no index.
#ifdef __CUDA_ARCH__
#define KVC_UNROLL _Pragma("unroll")
#define KVC_UNROLL_BY_4 _Pragma("unroll 4")
#define KVC_UNROLL_BY_8 _Pragma("unroll 8")
#define KVC_NO_UNROLL _Pragma("unroll 1")  // where registers are scarce
#else
#define KVC_UNROLL
#define KVC_NO_UNROLL
#define KVC_UNROLL_BY_4
#define KVC_UNROLL_BY_8
#endif
