#include "../core/drafter_rows.h"

#include <cstring>

#include "rows.h"

namespace eagle3::cpu {

void extend_rows(const ExtendRowsParams& p) {
  for (int64_t i = 0; i < p.num_rows; ++i) place_row(p, i);
  for (int64_t b = 0; b <= p.batch; ++b) place_sequence(p, b);
}

void keep_rows(const KeepRowsParams& p) {
  const int64_t bytes = p.hidden_size * element_size(p.dtype);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.last_rows[b] < 0) continue;
    const int64_t to = b * p.hidden_size;
    std::memcpy(advance(p.kept_s, to, p.dtype), advance(p.s, p.last_rows[b] * p.s_stride, p.dtype), bytes);
    std::memcpy(advance(p.kept_y, to, p.dtype), advance(p.y, p.last_rows[b] * p.y_stride, p.dtype), bytes);
    commit_rows(p, b);
  }
}

void draft_rows(const DraftRowsParams& p) {
  for (int64_t b = 0; b < p.batch; ++b) take_draft_token(p, b);
}

}  // namespace eagle3::cpu
