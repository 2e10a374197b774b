// Reading an index of either width. Apart from kernels.h, because that also reaches the sources compiled once per CPU level,
// where an inline function must not be instantiated (vector_kernels.h).
#pragma once

#include "../kernels.h"
#include "device.cuh"

namespace eagle3 {

EAGLE3_HOST_DEVICE int64_t index_at(const Indices& indices, int64_t i) {
  return indices.is_int32 ? static_cast<const int32_t*>(indices.data)[i] : static_cast<const int64_t*>(indices.data)[i];
}

}  // namespace eagle3
