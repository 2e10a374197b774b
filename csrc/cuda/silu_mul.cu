#include "../core/silu.h"
#include "dispatch.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kPieces = 2;  // of gate and of up: twice as many loads in flight per thread
constexpr int kMaxThreads = 256;

template <class T, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) silu_mul_kernel(const SiluMulParams p) {
  const int64_t n = blockIdx.x, size = p.intermediate_size;
  const T* gate = static_cast<const T*>(p.gate_up) + n * p.gate_up_stride;
  const T* up = gate + size;
  T* out = static_cast<T*>(p.out) + n * size;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kPieces * blockDim.x + threadIdx.x;
  Vec<T> g[kPieces], u[kPieces];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int64_t i = (first + j * blockDim.x) * kVec<T>;
    if (i >= size) continue;
    g[j] = load<T, kAligned>(gate, i, size);
    u[j] = load<T, kAligned>(up, i, size);
  }
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int64_t i = (first + j * blockDim.x) * kVec<T>;
    if (i >= size) continue;
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) g[j].lane[e] = silu_mul_element(g[j].lane[e], u[j].lane[e]);
    store<T, kAligned>(out, i, size, g[j]);
  }
}

}  // namespace

int silu_mul(const SiluMulParams& p, CUstream_st* stream) {
  if (p.num_rows == 0 || p.intermediate_size == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto aligned) {
      const unsigned threads = threads_for_row<T, kPieces>(p.intermediate_size, kMaxThreads);
      const int64_t parts = ceil_div(p.intermediate_size, int64_t{threads} * kPieces * kVec<T>);
      const dim3 grid(grid_size(p.num_rows), grid_size(parts));
      EAGLE3_LAUNCH((silu_mul_kernel<T, aligned.value>), grid, threads, 0, stream, p);
      return static_cast<int>(cudaGetLastError());
    };
    return for_layout<T>({p.gate_up, p.out}, {p.intermediate_size, p.gate_up_stride}, launch);
  });
}

}  // namespace eagle3::cuda
