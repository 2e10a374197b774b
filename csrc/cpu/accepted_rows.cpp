#include <algorithm>

#include "../core/accept.h"
#include "rows.h"

namespace eagle3::cpu {

void accepted_rows(const AcceptedRowsParams& p) {
  int64_t packed = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t length = clamp_accept_length(index_at(p.accept_lengths, b), p.width);
    p.row_offsets[b] = p.block_front ? b * p.width : packed;
    if (p.block_front) {
      for (int64_t i = 0; i < p.width; ++i) p.rows[b * p.width + i] = block_front_row(b, i, length, p.width);
    } else {
      for (int64_t i = 0; i < length; ++i) p.rows[packed + i] = b * p.width + i;
    }
    packed += length;
  }
  p.row_offsets[p.batch] = p.block_front ? p.batch * p.width : packed;
  if (!p.block_front) std::fill(p.rows + packed, p.rows + p.batch * p.width, int64_t{-1});
}

}  // namespace eagle3::cpu
