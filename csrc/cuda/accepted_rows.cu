#include "../core/accept.h"
#include "../core/indices.h"
#include "block.cuh"
#include "dispatch.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kThreads = 512;

// The sum over the threads before this one; `total` becomes that over the block. May be called again and again.
__device__ __forceinline__ int64_t block_exclusive_sum(int64_t value, int64_t& total) {
  __shared__ int64_t parts[kMaxWarps];
  int64_t inclusive = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int64_t before = __shfl_up_sync(kAllLanes, inclusive, offset);
    if (lane_index() >= offset) inclusive += before;
  }
  __syncthreads();  // the previous call's parts have been read
  if (lane_index() == 31) parts[warp_index()] = inclusive;
  __syncthreads();
  int64_t before = 0;
  total = 0;
  for (int w = 0; w < num_warps(); ++w) {
    if (w < warp_index()) before += parts[w];
    total += parts[w];
  }
  return before + inclusive - value;
}

// One block: the sequences in chunks of a thread each, so that the offsets run on from chunk to chunk.
__global__ void __launch_bounds__(kThreads) packed_rows_kernel(const AcceptedRowsParams p) {
  int64_t packed = 0;
  for (int64_t begin = 0; begin < p.batch; begin += kThreads) {
    const int64_t b = begin + threadIdx.x;
    const int64_t length = b < p.batch ? clamp_accept_length(index_at(p.accept_lengths, b), p.width) : 0;
    int64_t total;
    const int64_t offset = packed + block_exclusive_sum(length, total);
    for (int64_t i = 0; i < length; ++i) p.rows[offset + i] = b * p.width + i;
    if (b < p.batch) p.row_offsets[b] = offset;
    packed += total;
  }
  if (threadIdx.x == 0) p.row_offsets[p.batch] = packed;
  for (int64_t i = packed + threadIdx.x; i < p.batch * p.width; i += kThreads) p.rows[i] = -1;
}

// One thread per sequence, and one for the last offset.
__global__ void __launch_bounds__(kThreads) block_front_rows_kernel(const AcceptedRowsParams p) {
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (b > p.batch) return;
  p.row_offsets[b] = b * p.width;
  if (b == p.batch) return;
  const int64_t length = clamp_accept_length(index_at(p.accept_lengths, b), p.width);
  for (int64_t i = 0; i < p.width; ++i) p.rows[b * p.width + i] = block_front_row(b, i, length, p.width);
}

}  // namespace

int accepted_rows(const AcceptedRowsParams& p, CUstream_st* stream) {
  if (p.block_front) {
    EAGLE3_LAUNCH(block_front_rows_kernel, grid_size(p.batch / kThreads + 1), kThreads, 0, stream, p);
  } else {
    EAGLE3_LAUNCH(packed_rows_kernel, 1, kThreads, 0, stream, p);
  }
  return cudaGetLastError();
}

}  // namespace eagle3::cuda
