#include "../core/drafter_rows.h"

#include "dispatch.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kThreads = 128;

// A thread per row of the chunk, then one per sequence and one for the last offset.
__global__ void __launch_bounds__(kThreads) extend_rows_kernel(const ExtendRowsParams p) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item < p.num_rows) {
    place_row(p, item);
  } else if (item - p.num_rows <= p.batch) {
    place_sequence(p, item - p.num_rows);
  }
}

// Block (b, 0): s of sequence b, and the commit; block (b, 1): y.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) keep_rows_kernel(const KeepRowsParams p) {
  const int64_t b = blockIdx.x, row = p.last_rows[b], size = p.hidden_size;
  if (row < 0) return;
  const bool is_y = blockIdx.y == 1;
  const T* in = static_cast<const T*>(is_y ? p.y : p.s) + row * (is_y ? p.y_stride : p.s_stride);
  T* out = static_cast<T*>(is_y ? p.kept_y : p.kept_s) + b * size;
  for (int64_t i = threadIdx.x * int64_t{kVec<T>}; i < size; i += kThreads * int64_t{kVec<T>})
    store<T, kAligned>(out, i, size, load<T, kAligned>(in, i, size));
  if (!is_y && threadIdx.x == 0) commit_rows(p, b);
}

__global__ void __launch_bounds__(kThreads) draft_rows_kernel(const DraftRowsParams p) {
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (b < p.batch) take_draft_token(p, b);
}

}  // namespace

int extend_rows(const ExtendRowsParams& p, CUstream_st* stream) {
  const unsigned blocks = grid_size(ceil_div(p.num_rows + p.batch + 1, kThreads));
  EAGLE3_LAUNCH(extend_rows_kernel, blocks, kThreads, 0, stream, p);
  return cudaGetLastError();
}

int keep_rows(const KeepRowsParams& p, CUstream_st* stream) {
  if (p.batch == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    return for_layout<T>({p.s, p.y, p.kept_s, p.kept_y}, {p.hidden_size, p.s_stride, p.y_stride}, [&](auto aligned) {
      EAGLE3_LAUNCH((keep_rows_kernel<T, aligned.value>), dim3(grid_size(p.batch), 2), kThreads, 0, stream, p);
      return static_cast<int>(cudaGetLastError());
    });
  });
}

int draft_rows(const DraftRowsParams& p, CUstream_st* stream) {
  if (p.batch == 0) return cudaSuccess;
  EAGLE3_LAUNCH(draft_rows_kernel, grid_size(ceil_div(p.batch, kThreads)), kThreads, 0, stream, p);
  return cudaGetLastError();
}

}  // namespace eagle3::cuda
