#include "rms_norm.h"
#include "rows.h"

namespace eagle3::cpu {

void add_rms_norm(const AddRmsNormParams& p) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const int64_t size = p.hidden_size;
  for_rows(p.rows, size, [&](int64_t r) {
    void* hidden = advance(p.hidden, r * p.hidden_stride, p.dtype);
    void* residual = advance(p.residual, r * p.residual_stride, p.dtype);
    void* features = p.features ? advance(p.features, r * p.features_stride + p.slot * size, p.dtype) : nullptr;
    const float squares = kernels.add_squares(hidden, residual, residual, features, size);
    kernels.scale_gain(residual, inverse_rms(squares, size, p.eps), p.weight, hidden, size);
  });
}

}  // namespace eagle3::cpu
