// The one file that tells nvcc from g++, and g++ for a CPU from g++ for the emulator of tests/simt (EAGLE3_SIMT).
//
// A .cu file includes this header and no other of CUDA, and launches by EAGLE3_LAUNCH alone: then g++ can compile it
// too. `<<<>>>`, `extern __shared__` arrays, inline PTX and cooperative groups are what the emulator cannot take.
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#define EAGLE3_HOST_DEVICE __host__ __device__ __forceinline__

// EAGLE3_LAUNCH(kernel, grid, block, smem_bytes, stream, args...); a template in parentheses: (kernel<float, 8>).
// The launcher returns cudaGetLastError() afterwards.
#define EAGLE3_LAUNCH(kernel, grid, block, smem_bytes, stream, ...) \
  (kernel<<<(grid), (block), (smem_bytes), (stream)>>>(__VA_ARGS__))

// T* name = the block's dynamic shared memory, 16-byte aligned. At most one per kernel; carve up the rest by hand.
#define EAGLE3_DYNAMIC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char eagle3_dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(eagle3_dynamic_shared)

#elif defined(EAGLE3_SIMT)

#include "simt.h"

#define EAGLE3_HOST_DEVICE inline
#define EAGLE3_LAUNCH(kernel, grid, block, smem_bytes, stream, ...) \
  (static_cast<void>(stream), ::simt::run_kernel(kernel, (grid), (block), (smem_bytes), __VA_ARGS__))
#define EAGLE3_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(::simt::dynamic_shared())

#else

#define EAGLE3_HOST_DEVICE inline

#endif
