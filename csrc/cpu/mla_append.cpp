#include <cstring>

#include "rms_norm.h"
#include "rope.h"

namespace eagle3::cpu {
namespace {

void mla_append_row(const MlaAppendParams& p, int64_t n) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const int64_t half = p.rope_dim / 2, slot = index_at(p.slots, n), position = index_at(p.positions, n);
  const bool known = position >= 0 && position < p.max_position;  // only padding may lack angles; it stays unrotated
  const Angles angles =
      known ? align_angles(kernels, p.cos_sin + position * p.rope_dim, half) : Angles{nullptr, nullptr};
  for (int64_t head = 0; known && head < p.num_heads; ++head) {
    void* q = advance(p.q_pe, n * p.q_stride + head * p.q_head_stride, p.dtype);
    kernels.rotate(q, angles.cos, angles.sin, q, half);
  }
  if (slot < 0 || slot >= p.num_slots) return;
  const void* latent = advance(p.kv, n * p.kv_stride, p.dtype);
  void* cached = advance(p.cache, slot * (p.latent_dim + p.rope_dim), p.dtype);
  rms_norm_row(kernels, latent, p.kv_weight, p.eps, cached, p.latent_dim);
  void* k_pe = advance(cached, p.latent_dim, p.dtype);
  std::memcpy(k_pe, advance(latent, p.latent_dim, p.dtype), p.rope_dim * element_size(p.dtype));
  if (known) kernels.rotate(k_pe, angles.cos, angles.sin, k_pe, half);
}

}  // namespace

void mla_append(const MlaAppendParams& p) {
  const int64_t work = p.num_heads * p.rope_dim + p.latent_dim + p.rope_dim;
  for_rows(p.num_rows, work, [&](int64_t n) { mla_append_row(p, n); });
}

}  // namespace eagle3::cpu
