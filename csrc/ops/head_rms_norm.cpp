#include <torch/library.h>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

void head_rms_norm_(const at::Tensor& qkv_, const at::Tensor& q_weight_, const at::Tensor& k_weight_, double eps,
                    int64_t num_q_heads, int64_t num_kv_heads) {
  constexpr const char* kOp = "head_rms_norm_";
  Arg qkv(kOp, "qkv", qkv_), q_weight(kOp, "q_weight", q_weight_), k_weight(kOp, "k_weight", k_weight_);
  check_head_counts(qkv.shape({-1, -1}, "[n, (num_q_heads + 2 num_kv_heads) * d]"), num_q_heads, num_kv_heads);
  const int64_t head_dim = q_weight.shape({-1}, "[d]").same_dtype_and_device(qkv).readable_contiguous().size(0);
  k_weight.shape({head_dim}, "[d]").same_dtype_and_device(qkv).readable_contiguous();
  const int64_t width = (num_q_heads + 2 * num_kv_heads) * head_dim;
  qkv.shape({-1, width}, "[n, (num_q_heads + 2 num_kv_heads) * d]").writable_rows();
  qkv.apart_from(q_weight).apart_from(k_weight);
  launch<cpu::head_rms_norm, cuda::head_rms_norm>(kOp, qkv_, HeadRmsNormParams{
      .dtype = qkv.dtype(),
      .qkv = qkv.mutable_data(),
      .qkv_stride = qkv.row_stride(),
      .q_weight = q_weight.data(),
      .k_weight = k_weight.data(),
      .eps = checked_eps(kOp, eps),
      .num_rows = qkv.size(0),
      .num_q_heads = num_q_heads,
      .num_kv_heads = num_kv_heads,
      .head_dim = head_dim,
  });
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("head_rms_norm_", eagle3::head_rms_norm_); }
