#include <cstring>

#include "rows.h"

namespace eagle3::cpu {

void capture(const CaptureParams& p) {
  const RowKernels& kernels = row_kernels(p.dtype);
  for_rows(p.rows, p.hidden_size, [&](int64_t r) {
    void* out = advance(p.features, r * p.features_stride + p.slot * p.hidden_size, p.dtype);
    const void* hidden = advance(p.hidden, r * p.hidden_stride, p.dtype);
    if (p.residual) {
      kernels.add(hidden, advance(p.residual, r * p.residual_stride, p.dtype), out, p.hidden_size);
    } else {
      std::memcpy(out, hidden, p.hidden_size * element_size(p.dtype));
    }
  });
}

}  // namespace eagle3::cpu
