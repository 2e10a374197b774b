#include "rms_norm.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHeads = kThreads / 32;  // per block

// A warp per q or k head. A lane keeps its first piece of the head; longer heads are read again.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) head_rms_norm_kernel(const HeadRmsNormParams p) {
  const int64_t n = blockIdx.x, head = static_cast<int64_t>(blockIdx.y) * kHeads + warp_index(), size = p.head_dim;
  if (head >= p.num_q_heads + p.num_kv_heads) return;
  const T* gain = static_cast<const T*>(head < p.num_q_heads ? p.q_weight : p.k_weight);
  T* x = static_cast<T*>(p.qkv) + n * p.qkv_stride + head * size;
  const int64_t first = lane_index() * int64_t{kVec<T>}, step = 32 * int64_t{kVec<T>};

  const Vec<T> kept = first < size ? load<T, kAligned>(x, first, size) : zeros<T>();
  float squares = add_squares(kept, 0.0f);
  for (int64_t i = first + step; i < size; i += step) squares = add_squares(load<T, kAligned>(x, i, size), squares);

  const float scale = inverse_rms(warp_sum(squares), size, p.eps);
  if (first < size) store_normed<T, kAligned>(kept, scale, gain, x, first, size);
  for (int64_t i = first + step; i < size; i += step)
    store_normed<T, kAligned>(load<T, kAligned>(x, i, size), scale, gain, x, i, size);
}

}  // namespace

int head_rms_norm(const HeadRmsNormParams& p, CUstream_st* stream) {
  const int64_t heads = p.num_q_heads + p.num_kv_heads;
  if (p.num_rows == 0 || heads * p.head_dim == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto aligned) {
      const dim3 grid(grid_size(p.num_rows), grid_size(ceil_div(heads, kHeads)));
      EAGLE3_LAUNCH((head_rms_norm_kernel<T, aligned.value>), grid, kThreads, 0, stream, p);
      return static_cast<int>(cudaGetLastError());
    };
    return for_layout<T>({p.qkv, p.q_weight, p.k_weight}, {p.qkv_stride, p.head_dim}, launch);
  });
}

}  // namespace eagle3::cuda
