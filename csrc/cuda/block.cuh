// Reductions over a warp and a block. Every order of addition is fixed, so that results repeat bit for bit.
//
// Blocks are whole warps and all threads take part.
#pragma once

#include <cstdint>

#include "../core/device.cuh"

namespace eagle3::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMaxWarps = 32;

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x / 32); }
__device__ __forceinline__ int num_warps() { return static_cast<int>(blockDim.x / 32); }

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// The sums over the warp of kCount values, a power of two up to 32: lane l returns that of values[l * kCount / 32]. The
// same additions as warp_sum(), and so the same bits, but each lane carries on with half of the values at every step.
template <int kCount, int kOffset = 16>
__device__ __forceinline__ float warp_sums(const float (&values)[kCount]) {
  if constexpr (kOffset == 0) {
    return values[0];
  } else if constexpr (kCount == 1) {
    const float sum[1] = {values[0] + __shfl_xor_sync(kAllLanes, values[0], kOffset)};
    return warp_sums<1, kOffset / 2>(sum);
  } else {
    constexpr int kHalf = kCount / 2;
    const bool keeps_upper = (lane_index() & kOffset) != 0;
    float kept[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float sent = keeps_upper ? values[i] : values[kHalf + i];
      kept[i] = (keeps_upper ? values[kHalf + i] : values[i]) + __shfl_xor_sync(kAllLanes, sent, kOffset);
    }
    return warp_sums<kHalf, kOffset / 2>(kept);
  }
}

// The sum over the block, in every thread. Once per kernel: a second call would race with the first one's readers.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float parts[kMaxWarps];
  value = warp_sum(value);
  if (lane_index() == 0) parts[warp_index()] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < num_warps(); ++w) sum += parts[w];
  return sum;
}

}  // namespace eagle3::cuda
