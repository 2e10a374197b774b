#include "rms_norm.cuh"

namespace eagle3::cuda {
namespace {

// One row's pointers, and the sum of one piece of it.
template <class T, bool kAligned>
struct Row {
  T* hidden;
  T* residual;
  T* features;  // null: no capture
  int64_t size;

  // residual = round(hidden + residual), also into the features; returns it.
  __device__ __forceinline__ Vec<T> add(Vec<T> h, const Vec<T>& r, int64_t i) const {
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) h.lane[e] = T(static_cast<float>(h.lane[e]) + static_cast<float>(r.lane[e]));
    store<T, kAligned>(residual, i, size, h);
    if (features) store<T, kAligned>(features, i, size, h);
    return h;
  }
};

template <class T, bool kAligned>
__global__ void __launch_bounds__(kNormThreads) add_rms_norm_kernel(const AddRmsNormParams p) {
  const int64_t r = blockIdx.x, size = p.hidden_size;
  const Row<T, kAligned> row = {
      static_cast<T*>(p.hidden) + r * p.hidden_stride, static_cast<T*>(p.residual) + r * p.residual_stride,
      p.features ? static_cast<T*>(p.features) + r * p.features_stride + p.slot * size : nullptr, size};
  const T* gain = static_cast<const T*>(p.weight);
  const int64_t first = threadIdx.x * int64_t{kVec<T>}, step = blockDim.x * int64_t{kVec<T>};

  Vec<T> kept[kNormPieces], other[kNormPieces];
#pragma unroll
  for (int u = 0; u < kNormPieces; ++u) {
    if (first + u * step >= size) continue;
    kept[u] = load<T, kAligned>(row.hidden, first + u * step, size);
    other[u] = load<T, kAligned>(row.residual, first + u * step, size);
  }
  float squares = 0.0f;
#pragma unroll
  for (int u = 0; u < kNormPieces; ++u) {
    if (first + u * step >= size) continue;
    kept[u] = row.add(kept[u], other[u], first + u * step);
    squares = add_squares(kept[u], squares);
  }
  for (int64_t i = first + kNormPieces * step; i < size; i += step) {
    const Vec<T> sum = row.add(load<T, kAligned>(row.hidden, i, size), load<T, kAligned>(row.residual, i, size), i);
    squares = add_squares(sum, squares);
  }

  const float scale = inverse_rms(block_sum(squares), size, p.eps);
#pragma unroll
  for (int u = 0; u < kNormPieces; ++u)
    if (first + u * step < size) store_normed<T, kAligned>(kept[u], scale, gain, row.hidden, first + u * step, size);
  for (int64_t i = first + kNormPieces * step; i < size; i += step)
    store_normed<T, kAligned>(load<T, kAligned>(row.residual, i, size), scale, gain, row.hidden, i, size);
}

}  // namespace

int add_rms_norm(const AddRmsNormParams& p, CUstream_st* stream) {
  if (p.rows == 0 || p.hidden_size == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto aligned) {
      const unsigned rows = grid_size(p.rows), threads = norm_threads<T>(p.hidden_size);
      EAGLE3_LAUNCH((add_rms_norm_kernel<T, aligned.value>), rows, threads, 0, stream, p);
      return static_cast<int>(cudaGetLastError());
    };
    return for_layout<T>({p.hidden, p.residual, p.weight, p.features},
                         {p.hidden_size, p.hidden_stride, p.residual_stride, p.features_stride}, launch);
  });
}

}  // namespace eagle3::cuda
