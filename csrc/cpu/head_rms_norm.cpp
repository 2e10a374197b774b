#include "rms_norm.h"
#include "rows.h"

namespace eagle3::cpu {

void head_rms_norm(const HeadRmsNormParams& p) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const int64_t heads = p.num_q_heads + p.num_kv_heads;
  for_rows(p.num_rows, heads * p.head_dim, [&](int64_t n) {
    for (int64_t head = 0; head < heads; ++head) {
      void* x = advance(p.qkv, n * p.qkv_stride + head * p.head_dim, p.dtype);
      rms_norm_row(kernels, x, head < p.num_q_heads ? p.q_weight : p.k_weight, p.eps, x, p.head_dim);
    }
  });
}

}  // namespace eagle3::cpu
