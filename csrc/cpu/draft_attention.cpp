#include <cstring>
#include <vector>

#include "rows.h"

namespace eagle3::cpu {
namespace {

// The keys one query row sees: a run of cache rows; empty for padding.
struct Span {
  int64_t start, length;
};

std::vector<Span> visible_keys(const DraftAttentionParams& p) {
  std::vector<Span> spans(p.num_rows, Span{0, 0});
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t begin = index_at(p.row_offsets, b), end = std::min(index_at(p.row_offsets, b + 1), p.num_rows);
    const int64_t before = index_at(p.cache_lengths, b) - (end - begin);
    for (int64_t row = begin; row < end; ++row) {
      spans[row] = {index_at(p.cache_starts, b), before + (row - begin) + 1};
    }
  }
  return spans;
}

}  // namespace

void draft_attention(const DraftAttentionParams& p) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const std::vector<Span> spans = visible_keys(p);
  const int64_t group = p.num_q_heads / p.num_kv_heads;
  const int64_t scratch_size = kernels.attention_scratch(group, p.head_dim);
  int64_t longest = 0;
  for (const Span& span : spans) longest = std::max(longest, span.length);
  // One task per query row and kv head: results do not depend on what else is in the call.
  for_rows(p.num_rows * p.num_kv_heads, longest * p.head_dim * group, [&](int64_t task) {
    const int64_t row = task / p.num_kv_heads, kv_head = task % p.num_kv_heads;
    const int64_t head_offset = kv_head * group * p.head_dim, size = group * p.head_dim;
    void* out = advance(p.out, row * p.num_q_heads * p.head_dim + head_offset, p.dtype);
    if (spans[row].length <= 0) {
      std::memset(out, 0, size * element_size(p.dtype));
      return;
    }
    thread_local std::vector<float> scratch;
    scratch.resize(scratch_size);
    const int64_t start = spans[row].start;
    const void* const q = advance(p.q, row * p.q_stride + head_offset, p.dtype);
    const void* const keys = advance(p.k_cache, start * p.k_stride + kv_head * p.k_head_stride, p.dtype);
    const void* const values = advance(p.v_cache, start * p.v_stride + kv_head * p.v_head_stride, p.dtype);
    kernels.attention({q, keys, values, out, group, p.head_dim, spans[row].length, p.k_stride, p.v_stride, p.scale,
                       scratch.data()});
  });
}

}  // namespace eagle3::cpu
