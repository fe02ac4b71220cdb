// One thread of a running kernel: what kernels are written for. tests/runtime/kernels/cuda/emulated_thread.h has
// the same functions for the CPU.
//
// Fragments of a 16 x 8 x 16 product of a warp's lanes, two 16-bit numbers a word (PTX ISA, mma.m16n8k16):
//   a[i]  row lane / 4 + 8 (i % 2), columns 2 (lane % 4) + 8 (i / 2) and the next
//   b[i]  rows 2 (lane % 4) + 8 i and the next, column lane / 4
//   c[i]  row lane / 4 + 8 (i / 2), column 2 (lane % 4) + i % 2
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/kernels/cuda/device_numbers.h"

namespace kvc {

class DeviceThread {
 public:
  __device__ int index() const { return static_cast<int>(threadIdx.x); }
  __device__ int count() const { return static_cast<int>(blockDim.x); }
  __device__ int block_x() const { return static_cast<int>(blockIdx.x); }
  __device__ int block_y() const { return static_cast<int>(blockIdx.y); }
  __device__ int block_z() const { return static_cast<int>(blockIdx.z); }
  __device__ int grid_x() const { return static_cast<int>(gridDim.x); }
  __device__ int warp() const { return index() / 32; }
  __device__ int lane() const { return index() % 32; }

  // The block's dynamic shared memory, 16-byte aligned.
  __device__ std::uint8_t* shared() const {
    extern __shared__ __align__(16) std::uint8_t memory[];
    return memory;
  }

  __device__ void sync() const { __syncthreads(); }
  __device__ void sync_warp() const { __syncwarp(); }

  __device__ float shuffle_xor(float x, int lanes) const { return __shfl_xor_sync(~0u, x, lanes); }
  __device__ float shuffle(float x, int lane) const { return __shfl_sync(~0u, x, lane); }

  // 2 or 4 words of global memory, aligned to all of them. load_once: nobody reads them again, and no kernel that
  // runs writes them.
  __device__ void load_words(std::uint32_t (&to)[4], const void* from) const {
    const uint4 words = *static_cast<const uint4*>(from);
    to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
  }
  __device__ void load_once(std::uint32_t (&to)[4], const void* from) const {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
  }
  __device__ void load_once(std::uint32_t (&to)[2], const void* from) const {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "l"(from));
  }
  // *sum += x for all threads of the block, in any order; sum in shared memory.
  __device__ void add_shared(std::uint64_t* sum, std::uint64_t x) const {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(x));
  }

  // For `count` callers of one counter in global memory, each in a block of its own, whether this is the last; what the
  // others' blocks wrote before they came, and a barrier behind it, is then there for this one's, after another barrier.
  // The counter is 0 before the first and after the last.
  __device__ bool is_last_of(std::uint32_t* counter, int count) const {
    std::uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(count - 1)
                 : "memory");
    return before + 1 == static_cast<std::uint32_t>(count);
  }
  // Until as many as `least` have called is_last_of(), of `count` or more; what their blocks wrote is then there as it says.
  // For one thread of each block of a launch whose blocks run at once (LaunchGrid::at_once).
  __device__ void wait_for(const std::uint32_t* counter, int least) const {
    std::uint32_t now;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < static_cast<std::uint32_t>(least));
  }

  // Brings 128 bytes of global memory around an address nearer, for whoever loads them later.
  __device__ void prefetch(const void* global) const {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
  }

  // kBytes (4, 8 or 16, aligned) from global to shared memory, or zeros; there after wait().
  template <int kBytes>
  __device__ void copy_async(void* shared, const void* global, bool valid) const {
    const unsigned to = address(shared);
    const int bytes = valid ? kBytes : 0;
    if constexpr (kBytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                   "r"(bytes)
                   : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global),
                   "n"(kBytes), "r"(bytes)
                   : "memory");
    }
  }
  // Ends a group of this thread's copies.
  __device__ void commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // Until at most the newest kGroups groups are under way. Others see the copies after a sync.
  template <int kGroups>
  __device__ void wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
  }

  // c += a b.
  __device__ void multiply_add(BFloat16, float (&c)[4], const std::uint32_t (&a)[4],
                               const std::uint32_t (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  __device__ void multiply_add(Float16, float (&c)[4], const std::uint32_t (&a)[4],
                               const std::uint32_t (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }

  // Four 8 x 8 matrices of 16-bit numbers; lane i has the address of row i % 8 of matrix i / 8. The lane gets of
  // each the numbers 2 (lane % 4) and the next of row lane / 4, or, transposed, of column lane / 4.
  __device__ void load_matrices(std::uint32_t (&m)[4], const void* row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address(row))
                 : "memory");
  }
  __device__ void load_matrices_transposed(std::uint32_t (&m)[4], const void* row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address(row))
                 : "memory");
  }
  // An 8 x 8 matrix of 16-bit numbers in the lanes' words becomes its transpose.
  __device__ std::uint32_t transpose(std::uint32_t m) const {
    std::uint32_t t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(m));
    return t;
  }

 private:
  __device__ static unsigned address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
  }
};

}  // namespace kvc
