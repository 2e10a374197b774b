#include "../core/indices.h"
#include "rms_norm.cuh"
#include "rope.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kThreads = 128;

// The cache row of one row, by one block.
template <class T, bool kAligned>
__device__ __forceinline__ void append(const MlaAppendParams& p, int64_t n, const float* angles) {
  const int64_t slot = index_at(p.slots, n), half = p.rope_dim / 2;
  if (slot < 0 || slot >= p.num_slots) return;
  const T* latent = static_cast<const T*>(p.kv) + n * p.kv_stride;
  T* cached = static_cast<T*>(p.cache) + slot * (p.latent_dim + p.rope_dim);
  for (int64_t i = threadIdx.x * int64_t{kVec<T>}; i < half; i += kThreads * int64_t{kVec<T>}) {
    Pairs<T, kAligned> pairs;
    pairs.read(latent + p.latent_dim, i, half);
    if (angles) pairs.rotate(angles, i, half);
    pairs.write(cached + p.latent_dim, i, half);
  }
  const auto read = [&](int64_t i) { return load<T, kAligned>(latent, i, p.latent_dim); };
  rms_norm_row<T, kAligned>(read, static_cast<const T*>(p.kv_weight), p.eps, cached, p.latent_dim);
}

// Block (row, 0) appends the row to the cache, the others rotate its queries, a thread per piece of a head.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) mla_append_kernel(const MlaAppendParams p) {
  const int64_t n = blockIdx.x, half = p.rope_dim / 2;
  const float* angles = angles_at(p.cos_sin, index_at(p.positions, n), p.max_position, p.rope_dim);
  if (blockIdx.y == 0) return append<T, kAligned>(p, n, angles);
  const int64_t pieces = (half + kVec<T> - 1) / kVec<T>;
  const int64_t item = (blockIdx.y - int64_t{1}) * kThreads + threadIdx.x;
  if (!angles || item >= p.num_heads * pieces) return;
  T* head = static_cast<T*>(p.q_pe) + n * p.q_stride + item / pieces * p.q_head_stride;
  const int64_t i = item % pieces * kVec<T>;
  Pairs<T, kAligned> pairs;
  pairs.read(head, i, half);
  pairs.rotate(angles, i, half);
  pairs.write(head, i, half);
}

}  // namespace

int mla_append(const MlaAppendParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto aligned) {
      const int64_t pieces = p.num_heads * ceil_div(p.rope_dim / 2, kVec<T>);
      const dim3 grid(grid_size(p.num_rows), grid_size(1 + ceil_div(pieces, kThreads)));
      EAGLE3_LAUNCH((mla_append_kernel<T, aligned.value>), grid, kThreads, 0, stream, p);
      return static_cast<int>(cudaGetLastError());
    };
    return for_layout<T>({p.q_pe, p.kv, p.kv_weight, p.cos_sin, p.cache},
                         {p.q_stride, p.q_head_stride, p.kv_stride, p.latent_dim, p.rope_dim / 2}, launch);
  });
}

}  // namespace eagle3::cuda
