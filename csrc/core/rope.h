// The rotation of RoPE, shared by the CPU and CUDA kernels: pairs (i, i + rotary_dim / 2), in fp32, rounded once.
#pragma once

#include "device.cuh"

namespace eagle3 {

template <class T>
EAGLE3_HOST_DEVICE void rotate_pair(T& low, T& high, float cos, float sin) {
  const float a = static_cast<float>(low), b = static_cast<float>(high);
  low = T(a * cos - b * sin);
  high = T(b * cos + a * sin);
}

}  // namespace eagle3
