#include "rope.h"

#include <cstring>

namespace eagle3::cpu {
namespace {

void rope_append_row(const RopeAppendParams& p, int64_t n) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const int64_t half = p.rotary_dim / 2, kv_size = p.num_kv_heads * p.head_dim;
  const int64_t position = index_at(p.positions, n), slot = index_at(p.slots, n);
  void* q = advance(p.qkv, n * p.qkv_stride, p.dtype);
  void* k = advance(q, p.num_q_heads * p.head_dim, p.dtype);
  const void* v = advance(k, kv_size, p.dtype);
  // A position without angles is refused by the op's check; padding rows keep theirs unrotated.
  if (position >= 0 && position < p.max_position) {
    const Angles angles = align_angles(kernels, p.cos_sin + position * p.rotary_dim, half);
    for (int64_t head = 0; head < p.num_q_heads + p.num_kv_heads; ++head) {
      void* x = advance(q, head * p.head_dim, p.dtype);
      kernels.rotate(x, angles.cos, angles.sin, x, half);
    }
  }
  if (slot < 0 || slot >= p.num_slots) return;
  const int64_t bytes = kv_size * element_size(p.dtype);
  std::memcpy(advance(p.k_cache, slot * kv_size, p.dtype), k, bytes);
  std::memcpy(advance(p.v_cache, slot * kv_size, p.dtype), v, bytes);
}

}  // namespace

void rope_append(const RopeAppendParams& p) {
  const int64_t work = (p.num_q_heads + 2 * p.num_kv_heads) * p.head_dim;
  for_rows(p.num_rows, work, [&](int64_t n) { rope_append_row(p, n); });
}

}  // namespace eagle3::cpu
