#include <torch/library.h>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

void mla_append_(const at::Tensor& q_pe_, const at::Tensor& kv_, const at::Tensor& kv_weight_, double eps,
                 const at::Tensor& positions_, const at::Tensor& slots_, const at::Tensor& cos_sin_,
                 const at::Tensor& cache_) {
  constexpr const char* kOp = "mla_append_";
  Arg q_pe(kOp, "q_pe", q_pe_), kv(kOp, "kv", kv_), kv_weight(kOp, "kv_weight", kv_weight_);
  Arg positions(kOp, "positions", positions_), slots(kOp, "slots", slots_);
  Arg cos_sin(kOp, "cos_sin", cos_sin_), cache(kOp, "cache", cache_);
  q_pe.shape({-1, -1, -1}, "[n, heads, r]").writable_heads();
  const int64_t n = q_pe.size(0), rope_dim = q_pe.size(2);
  kv_weight.shape({-1}, "[latent]").same_dtype_and_device(q_pe).readable_contiguous();
  const int64_t latent_dim = kv_weight.size(0);
  kv.shape({n, latent_dim + rope_dim}, "[n, latent + r]").same_dtype_and_device(q_pe).readable_rows();
  cache.shape({-1, latent_dim + rope_dim}, "[slots, latent + r]").same_dtype_and_device(q_pe).writable_contiguous();
  cache.apart_from(kv).apart_from(q_pe);
  q_pe.apart_from(kv);
  positions.shape({n}, "[n]").same_device(q_pe);
  slots.shape({n}, "[n]").same_device(q_pe);
  cos_sin.shape({-1, rope_dim}, "[max_position, r]").of_type(at::kFloat).same_device(q_pe).readable_contiguous();
  TORCH_CHECK_VALUE(rope_dim % 2 == 0, kOp, ": q_pe has r = ", rope_dim, ", expected an even number: RoPE turns pairs");
  if (can_read_values(slots_)) check_positions(positions, slots, cos_sin.size(0), cache.size(0));
  launch<cpu::mla_append, cuda::mla_append>(kOp, q_pe_, MlaAppendParams{
      .dtype = q_pe.dtype(),
      .q_pe = q_pe.mutable_data(),
      .q_stride = q_pe_.stride(0),
      .q_head_stride = q_pe_.stride(1),
      .kv = kv.data(),
      .kv_stride = kv.row_stride(),
      .kv_weight = kv_weight.data(),
      .eps = checked_eps(kOp, eps),
      .positions = positions.indices(),
      .slots = slots.indices(),
      .cos_sin = static_cast<const float*>(cos_sin.data()),
      .num_rows = n,
      .num_heads = q_pe.size(1),
      .latent_dim = latent_dim,
      .rope_dim = rope_dim,
      .max_position = cos_sin.size(0),
      .cache = cache.mutable_data(),
      .num_slots = cache.size(0),
  });
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("mla_append_", eagle3::mla_append_); }
