// RMSNorm of one row on the CPU, with the rounding of the reference: cast to the dtype before the gain.
#pragma once

#include "../core/rms_norm.h"
#include "dispatch.h"

namespace eagle3::cpu {

// out = round(round(x / rms(x)) * gain), x and out rows of `size` elements.
inline void rms_norm_row(const RowKernels& row, const void* x, const void* gain, float eps, void* out, int64_t size) {
  row.scale_gain(x, inverse_rms(row.squares(x, size), size, eps), gain, out, size);
}

}  // namespace eagle3::cpu
