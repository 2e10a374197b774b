// The rounding of the gated activation, shared by the CPU and CUDA kernels: silu in fp32, rounded before the product.
#pragma once

#include <cmath>

#include "device.cuh"

namespace eagle3 {

template <class T>
EAGLE3_HOST_DEVICE T silu_mul_element(T gate, T up) {
  const float x = static_cast<float>(gate);
  const T silu = T(x / (1.0f + expf(-x)));
  return T(static_cast<float>(silu) * static_cast<float>(up));
}

}  // namespace eagle3
