#include <vector>

#include "rows.h"

namespace eagle3::cpu {

void skinny_linear(const SkinnyLinearParams& p) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const int64_t packed_bytes = kernels.packed_bytes(p.k);
  // Shared by all threads of this call; kept between calls, so that a decode step allocates nothing.
  thread_local std::vector<char> buffer;
  buffer.resize(std::max<size_t>(buffer.size(), p.m * packed_bytes));
  char* const packed = buffer.data();
  for (int64_t m = 0; m < p.m; ++m) kernels.pack(advance(p.x, m * p.x_stride, p.dtype), p.k, packed + m * packed_bytes);

  const int64_t blocks = (p.n + kLinearBlockRows - 1) / kLinearBlockRows;
  for_rows(blocks, kLinearBlockRows * p.k, [&](int64_t block) {
    const int64_t row = block * kLinearBlockRows;
    for (int64_t m = 0; m < p.m; m += kLinearBlockTokens) {
      kernels.linear({packed + m * packed_bytes, advance(p.weight, row * p.k, p.dtype),
                      p.bias ? advance(p.bias, row, p.dtype) : nullptr, advance(p.y, m * p.n + row, p.dtype),
                      std::min<int64_t>(kLinearBlockTokens, p.m - m), std::min<int64_t>(kLinearBlockRows, p.n - row),
                      p.k, p.n});
    }
  });
}

}  // namespace eagle3::cpu
