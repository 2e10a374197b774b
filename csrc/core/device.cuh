// The one file that tells nvcc from g++.
#pragma once

#if defined(__CUDACC__)
#define EAGLE3_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define EAGLE3_HOST_DEVICE inline
#endif
