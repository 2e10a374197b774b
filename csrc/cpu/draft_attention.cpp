#include "../core/visible_keys.h"

#include <cstring>
#include <vector>

#include "rows.h"

namespace eagle3::cpu {
namespace {

// Query heads of one task. More would leave threads idle where one kv head serves all query heads, as in MLA.
constexpr int64_t kTaskHeads = 8;

// The keys that each query row sees; none for padding.
std::vector<KeySpan> spans_of(const DraftAttentionParams& p) {
  std::vector<KeySpan> spans(p.num_rows, KeySpan{0, 0});
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t begin = index_at(p.row_offsets, b), end = std::min(index_at(p.row_offsets, b + 1), p.num_rows);
    const int64_t start = index_at(p.cache_starts, b), length = index_at(p.cache_lengths, b);
    for (int64_t row = begin; row < end; ++row) spans[row] = visible_keys(row, begin, end, start, length, p.window);
  }
  return spans;
}

// Query heads first .. first + heads - 1 of a row, which share a kv head.
void attend(const DraftAttentionParams& p, int64_t row, const KeySpan& keys, int64_t first, int64_t heads) {
  const RowKernels& kernels = row_kernels(p.dtype);
  void* out = advance(p.out, (row * p.num_q_heads + first) * p.value_dim, p.dtype);
  if (keys.length <= 0) {
    std::memset(out, 0, heads * p.value_dim * element_size(p.dtype));
    return;
  }
  thread_local std::vector<float> scratch;
  scratch.resize(kernels.attention_scratch(heads, p.head_dim, p.value_dim));
  const int64_t kv_head = first / (p.num_q_heads / p.num_kv_heads);
  kernels.attention({.q = advance(p.q, row * p.q_stride + first * p.head_dim, p.dtype),
                     .k_cache = advance(p.k_cache, keys.start * p.k_stride + kv_head * p.k_head_stride, p.dtype),
                     .v_cache = advance(p.v_cache, keys.start * p.v_stride + kv_head * p.v_head_stride, p.dtype),
                     .out = out,
                     .heads = heads,
                     .head_dim = p.head_dim,
                     .value_dim = p.value_dim,
                     .length = keys.length,
                     .k_stride = p.k_stride,
                     .v_stride = p.v_stride,
                     .scale = p.scale,
                     .scratch = scratch.data()});
}

}  // namespace

void draft_attention(const DraftAttentionParams& p) {
  const std::vector<KeySpan> spans = spans_of(p);
  const int64_t group = p.num_q_heads / p.num_kv_heads, tasks = (group + kTaskHeads - 1) / kTaskHeads;
  int64_t longest = 0;
  for (const KeySpan& span : spans) longest = std::max(longest, span.length);
  const int64_t work = longest * p.head_dim * std::min(group, kTaskHeads);
  // Every query row and head by itself: results do not depend on what else is in the call.
  for_rows(p.num_rows * p.num_kv_heads * tasks, work, [&](int64_t i) {
    const int64_t row = i / (p.num_kv_heads * tasks), kv_head = i / tasks % p.num_kv_heads;
    const int64_t begin = i % tasks * kTaskHeads, heads = std::min(kTaskHeads, group - begin);
    attend(p, row, spans[row], kv_head * group + begin, heads);
  });
}

}  // namespace eagle3::cpu
