// RoPE in pieces: the pairs (i, i + half) of a head, kVec of them to a thread.
#pragma once

#include "../core/rope.h"
#include "vec.cuh"

namespace eagle3::cuda {

// The angles of a position in cos_sin [max_position, rotary_dim]; null outside it, where only padding may lie: it stays
// unrotated.
__device__ __forceinline__ const float* angles_at(const float* cos_sin, int64_t position, int64_t max_position,
                                                  int64_t rotary_dim) {
  return position >= 0 && position < max_position ? cos_sin + position * rotary_dim : nullptr;
}

template <class T, bool kAligned>
struct Pairs {
  Vec<T> low, high;

  __device__ __forceinline__ void read(const T* head, int64_t i, int64_t half) {
    low = load<T, kAligned>(head, i, half);
    high = load<T, kAligned>(head + half, i, half);
  }
  __device__ __forceinline__ void rotate(const float* angles, int64_t i, int64_t half) {
#pragma unroll
    for (int j = 0; j < kVec<T>; j += 4) {
      const Vec<float> cos = load<float, kAligned>(angles, i + j, half);
      const Vec<float> sin = load<float, kAligned>(angles + half, i + j, half);
#pragma unroll
      for (int e = 0; e < 4; ++e) rotate_pair(low.lane[j + e], high.lane[j + e], cos.lane[e], sin.lane[e]);
    }
  }
  __device__ __forceinline__ void write(T* head, int64_t i, int64_t half) const {
    store<T, kAligned>(head, i, half, low);
    store<T, kAligned>(head + half, i, half, high);
  }
};

}  // namespace eagle3::cuda
