#include <torch/library.h>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

void rope_append_(const at::Tensor& qkv_, const at::Tensor& positions_, const at::Tensor& slots_,
                  const at::Tensor& cos_sin_, int64_t num_q_heads, int64_t num_kv_heads, const at::Tensor& k_cache_,
                  const at::Tensor& v_cache_) {
  constexpr const char* kOp = "rope_append_";
  Arg qkv(kOp, "qkv", qkv_), positions(kOp, "positions", positions_), slots(kOp, "slots", slots_);
  Arg cos_sin(kOp, "cos_sin", cos_sin_), k_cache(kOp, "k_cache", k_cache_), v_cache(kOp, "v_cache", v_cache_);
  check_head_counts(qkv.shape({-1, -1}, "[n, (num_q_heads + 2 num_kv_heads) * d]"), num_q_heads, num_kv_heads);
  k_cache.shape({-1, num_kv_heads, -1}, "[slots, num_kv_heads, d]").same_dtype_and_device(qkv).writable_contiguous();
  v_cache.shape(k_cache_.sizes(), "[slots, num_kv_heads, d]").same_dtype_and_device(qkv).writable_contiguous();
  const int64_t head_dim = k_cache.size(2), num_slots = k_cache.size(0);
  const int64_t width = (num_q_heads + 2 * num_kv_heads) * head_dim;
  const int64_t n = qkv.shape({-1, width}, "[n, (num_q_heads + 2 num_kv_heads) * d]").writable_rows().size(0);
  k_cache.apart_from(v_cache).apart_from(qkv);
  v_cache.apart_from(qkv);
  positions.shape({n}, "[n]").same_device(qkv);
  slots.shape({n}, "[n]").same_device(qkv);
  cos_sin.shape({-1, -1}, "[max_position, rotary_dim]").of_type(at::kFloat).same_device(qkv).readable_contiguous();
  const int64_t max_position = cos_sin.size(0), rotary_dim = cos_sin.size(1);
  TORCH_CHECK_VALUE(rotary_dim % 2 == 0 && rotary_dim <= head_dim, kOp, ": cos_sin has rotary_dim ", rotary_dim,
                    ", expected an even number up to head_dim = ", head_dim);

  if (can_read_values(slots_)) check_positions(positions, slots, max_position, num_slots);
  launch<cpu::rope_append, cuda::rope_append>(kOp, qkv_, RopeAppendParams{
      .dtype = qkv.dtype(),
      .qkv = qkv.mutable_data(),
      .qkv_stride = qkv.row_stride(),
      .positions = positions.indices(),
      .slots = slots.indices(),
      .cos_sin = static_cast<const float*>(cos_sin.data()),
      .num_rows = n,
      .num_q_heads = num_q_heads,
      .num_kv_heads = num_kv_heads,
      .head_dim = head_dim,
      .rotary_dim = rotary_dim,
      .max_position = max_position,
      .k_cache = k_cache.mutable_data(),
      .v_cache = v_cache.mutable_data(),
      .num_slots = num_slots,
  });
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("rope_append_", eagle3::rope_append_); }
