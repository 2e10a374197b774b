#include "../core/indices.h"
#include "rms_norm.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kPieces = 4;  // loads in flight per thread
constexpr int kMaxThreads = 256;

// The source row of output row m, -1 for zeros: padding, and whatever lies outside the source.
__device__ __forceinline__ int64_t source_row(const GatherConcatParams& p, int64_t m) {
  const int64_t row = index_at(p.rows, m);
  return row < p.num_source_rows ? row : -1;
}

template <class T>
__device__ __forceinline__ const T* state_row(const GatherConcatParams& p, int64_t state, int64_t row) {
  return static_cast<const T*>(p.states[state]) + row * p.state_strides[state];
}

// Block (m, state, part): a part of one state's row, copied.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) gather_concat_kernel(const __grid_constant__ GatherConcatParams p) {
  const int64_t m = blockIdx.x, state = blockIdx.y, size = p.hidden_size, row = source_row(p, m);
  const T* in = state_row<T>(p, state, row < 0 ? 0 : row);
  T* out = static_cast<T*>(p.out) + m * p.out_stride + state * size;
  const int64_t first = static_cast<int64_t>(blockIdx.z) * kPieces * blockDim.x + threadIdx.x;
  Vec<T> piece[kPieces];
#pragma unroll
  for (int u = 0; u < kPieces; ++u) {
    const int64_t i = (first + u * blockDim.x) * kVec<T>;
    piece[u] = zeros<T>();
    if (row >= 0 && i < size) piece[u] = load<T, kAligned>(in, i, size);
  }
#pragma unroll
  for (int u = 0; u < kPieces; ++u) {
    const int64_t i = (first + u * blockDim.x) * kVec<T>;
    if (i < size) store<T, kAligned>(out, i, size, piece[u]);
  }
}

// The row of all states side by side, as one norm over it reads it.
template <class T, bool kAligned>
__device__ __forceinline__ Vec<T> load_joined(const GatherConcatParams& p, int64_t row, int64_t i, int64_t width) {
  if constexpr (kAligned) {
    const int64_t state = i / p.hidden_size;
    return load<T, true>(state_row<T>(p, state, row), i - state * p.hidden_size, p.hidden_size);
  }
  Vec<T> v = zeros<T>();
#pragma unroll
  for (int e = 0; e < kVec<T>; ++e) {
    if (i + e >= width) break;
    const int64_t state = (i + e) / p.hidden_size;
    v.lane[e] = state_row<T>(p, state, row)[i + e - state * p.hidden_size];
  }
  return v;
}

// Block (m, j): chunk j with a norm of its own.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kNormThreads) gather_norm_kernel(const __grid_constant__ GatherConcatParams p) {
  const int64_t m = blockIdx.x, state = blockIdx.y, size = p.hidden_size, row = source_row(p, m);
  T* out = static_cast<T*>(p.out) + m * p.out_stride + state * size;
  if (row < 0) {
    for (int64_t i = threadIdx.x * int64_t{kVec<T>}; i < size; i += blockDim.x * int64_t{kVec<T>})
      store<T, kAligned>(out, i, size, zeros<T>());
    return;
  }
  const T* in = state_row<T>(p, state, row);
  const auto read = [&](int64_t i) { return load<T, kAligned>(in, i, size); };
  rms_norm_row<T, kAligned>(read, static_cast<const T*>(p.norm_weights[state]), p.eps, out, size);
}

// Block m: one norm over the whole row.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kNormThreads, 1)
    gather_whole_norm_kernel(const __grid_constant__ GatherConcatParams p) {
  const int64_t m = blockIdx.x, width = p.num_states * p.hidden_size, row = source_row(p, m);
  T* out = static_cast<T*>(p.out) + m * p.out_stride;
  if (row < 0) {
    for (int64_t i = threadIdx.x * int64_t{kVec<T>}; i < width; i += blockDim.x * int64_t{kVec<T>})
      store<T, kAligned>(out, i, width, zeros<T>());
    return;
  }
  const auto read = [&](int64_t i) { return load_joined<T, kAligned>(p, row, i, width); };
  rms_norm_row<T, kAligned>(read, static_cast<const T*>(p.norm_weights[0]), p.eps, out, width);
}

template <class T, bool kAligned>
int launch(const GatherConcatParams& p, CUstream_st* stream) {
  const unsigned rows = grid_size(p.num_rows), states = grid_size(p.num_states);
  if (p.num_norm_weights == 0) {
    const unsigned threads = threads_for_row<T, kPieces>(p.hidden_size, kMaxThreads);
    const int64_t parts = ceil_div(p.hidden_size, int64_t{threads} * kPieces * kVec<T>);
    const dim3 grid(rows, states, grid_size(parts));
    EAGLE3_LAUNCH((gather_concat_kernel<T, kAligned>), grid, threads, 0, stream, p);
  } else if (p.num_norm_weights == p.num_states) {
    EAGLE3_LAUNCH((gather_norm_kernel<T, kAligned>), dim3(rows, states), norm_threads<T>(p.hidden_size), 0, stream, p);
  } else {
    const unsigned threads = norm_threads<T>(p.num_states * p.hidden_size);
    EAGLE3_LAUNCH((gather_whole_norm_kernel<T, kAligned>), rows, threads, 0, stream, p);
  }
  return cudaGetLastError();
}

}  // namespace

int gather_concat(const GatherConcatParams& p, CUstream_st* stream) {
  if (p.num_rows == 0 || p.num_states * p.hidden_size == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned = are_aligned(p.states, p.num_states) && are_aligned(p.norm_weights, p.num_norm_weights) &&
                         are_aligned(&p.out, 1) && are_whole_pieces<T>(p.state_strides, p.num_states) &&
                         are_whole_pieces<T>(&p.hidden_size, 1) && are_whole_pieces<T>(&p.out_stride, 1);
    return aligned ? launch<T, true>(p, stream) : launch<T, false>(p, stream);
  });
}

}  // namespace eagle3::cuda
