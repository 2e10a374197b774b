#include "rows.h"

namespace eagle3::cpu {

void silu_mul(const SiluMulParams& p) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const int64_t size = p.intermediate_size;
  for_rows(p.num_rows, size, [&](int64_t n) {
    const void* gate = advance(p.gate_up, n * p.gate_up_stride, p.dtype);
    kernels.silu_mul(gate, advance(gate, size, p.dtype), advance(p.out, n * size, p.dtype), size);
  });
}

}  // namespace eagle3::cpu
