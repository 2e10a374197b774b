#include "dispatch.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kPieces = 4;  // loads in flight per thread
constexpr int kMaxThreads = 256;

template <class T, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads) capture_kernel(const CaptureParams p) {
  const int64_t row = blockIdx.x, size = p.hidden_size;
  const T* hidden = static_cast<const T*>(p.hidden) + row * p.hidden_stride;
  const T* residual = p.residual ? static_cast<const T*>(p.residual) + row * p.residual_stride : nullptr;
  T* out = static_cast<T*>(p.features) + row * p.features_stride + p.slot * size;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kPieces * blockDim.x + threadIdx.x;

  Vec<T> sum[kPieces], other[kPieces];
#pragma unroll
  for (int u = 0; u < kPieces; ++u) {
    const int64_t i = (first + u * blockDim.x) * kVec<T>;
    if (i >= size) continue;
    sum[u] = load<T, kAligned>(hidden, i, size);
    if (residual) other[u] = load<T, kAligned>(residual, i, size);
  }
#pragma unroll
  for (int u = 0; u < kPieces; ++u) {
    const int64_t i = (first + u * blockDim.x) * kVec<T>;
    if (i >= size) continue;
    if (residual) {
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e)
        sum[u].lane[e] = T(static_cast<float>(sum[u].lane[e]) + static_cast<float>(other[u].lane[e]));
    }
    store<T, kAligned>(out, i, size, sum[u]);
  }
}

}  // namespace

int capture(const CaptureParams& p, CUstream_st* stream) {
  if (p.rows == 0 || p.hidden_size == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto aligned) {
      const unsigned threads = threads_for_row<T, kPieces>(p.hidden_size, kMaxThreads);
      const int64_t parts = ceil_div(p.hidden_size, int64_t{threads} * kPieces * kVec<T>);
      const dim3 grid(grid_size(p.rows), grid_size(parts));
      EAGLE3_LAUNCH((capture_kernel<T, aligned.value>), grid, threads, 0, stream, p);
      return static_cast<int>(cudaGetLastError());
    };
    return for_layout<T>({p.features, p.hidden, p.residual},
                         {p.hidden_size, p.features_stride, p.hidden_stride, p.residual_stride}, launch);
  });
}

}  // namespace eagle3::cuda
