// RMSNorm of one row by one block, shared by the ops that norm: the row is read once and waits in registers for its
// norm.
#pragma once

#include "../core/rms_norm.h"
#include "block.cuh"
#include "dispatch.cuh"

namespace eagle3::cuda {

constexpr int kNormPieces = 4;  // of the row, kept by each thread; longer rows are read again
constexpr int kNormThreads = 512;

template <class T>
unsigned norm_threads(int64_t size) {
  return threads_for_row<T, kNormPieces>(size, kNormThreads);
}

template <class T>
__device__ __forceinline__ float add_squares(const Vec<T>& x, float squares) {
#pragma unroll
  for (int e = 0; e < kVec<T>; ++e) {
    const float z = static_cast<float>(x.lane[e]);
    squares = fmaf(z, z, squares);
  }
  return squares;
}

// out[i ..] = round(round(x * scale) * gain[i ..])
template <class T, bool kAligned>
__device__ __forceinline__ void store_normed(Vec<T> x, float scale, const T* gain, T* out, int64_t i, int64_t size) {
  const Vec<T> g = load<T, kAligned>(gain, i, size);
#pragma unroll
  for (int e = 0; e < kVec<T>; ++e) x.lane[e] = scale_gain(x.lane[e], scale, g.lane[e]);
  store<T, kAligned>(out, i, size, x);
}

// out = RMS(row; gain) where read(i) gives the piece of the row at i. All threads of the block take part, once per
// kernel.
template <class T, bool kAligned, class Read>
__device__ __forceinline__ void rms_norm_row(const Read& read, const T* gain, float eps, T* out, int64_t size) {
  const int64_t first = threadIdx.x * int64_t{kVec<T>}, step = blockDim.x * int64_t{kVec<T>};
  Vec<T> kept[kNormPieces];
#pragma unroll
  for (int u = 0; u < kNormPieces; ++u)
    if (first + u * step < size) kept[u] = read(first + u * step);
  float squares = 0.0f;
#pragma unroll
  for (int u = 0; u < kNormPieces; ++u)
    if (first + u * step < size) squares = add_squares(kept[u], squares);
  for (int64_t i = first + kNormPieces * step; i < size; i += step) squares = add_squares(read(i), squares);

  const float scale = inverse_rms(block_sum(squares), size, eps);
#pragma unroll
  for (int u = 0; u < kNormPieces; ++u)
    if (first + u * step < size) store_normed<T, kAligned>(kept[u], scale, gain, out, first + u * step, size);
  for (int64_t i = first + kNormPieces * step; i < size; i += step)
    store_normed<T, kAligned>(read(i), scale, gain, out, i, size);
}

}  // namespace eagle3::cuda
