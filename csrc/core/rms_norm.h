// The rounding of RMSNorm, shared by the CPU and CUDA kernels: cast to the dtype before the gain, as the reference
// does.
#pragma once

#include <cmath>
#include <cstdint>

#include "device.cuh"

namespace eagle3 {

EAGLE3_HOST_DEVICE float inverse_rms(float squares, int64_t size, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(size) + eps);
}

// round(round(x * scale) * gain)
template <class T>
EAGLE3_HOST_DEVICE T scale_gain(T x, float scale, T gain) {
  const T unit = T(static_cast<float>(x) * scale);
  return T(static_cast<float>(unit) * static_cast<float>(gain));
}

}  // namespace eagle3
