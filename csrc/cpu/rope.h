// The angles of RoPE on the CPU.
#pragma once

#include <vector>

#include "rows.h"

namespace eagle3::cpu {

// Cosines and sines of one position, ordered as `rotate` of a type reads them.
struct Angles {
  const float* cos;
  const float* sin;
};

// From a row of cos_sin, [cos | sin] of `half` each. Lies in memory of this thread until its next call.
inline Angles align_angles(const RowKernels& kernels, const float* row, int64_t half) {
  thread_local std::vector<float> aligned;
  aligned.resize(2 * (half + kAnglePadding));
  float* const cos = aligned.data();
  float* const sin = cos + half + kAnglePadding;
  kernels.align_floats(row, cos, half);
  kernels.align_floats(row + half, sin, half);
  return {cos, sin};
}

}  // namespace eagle3::cpu
