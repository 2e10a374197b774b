#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

constexpr const char* kAttentionOp = "draft_attention";

// Every sequence's query rows and cache rows must lie inside q and the cache, its own rows included in the cache rows.
void check_ranges(const DraftAttentionParams& params, int64_t num_slots) {
  TORCH_CHECK_INDEX(index_at(params.row_offsets, 0) == 0, kAttentionOp, ": row_offsets[0] is ",
                    index_at(params.row_offsets, 0), ", expected 0");
  for (int64_t b = 0; b < params.batch; ++b) {
    const int64_t begin = index_at(params.row_offsets, b), end = index_at(params.row_offsets, b + 1);
    const int64_t start = index_at(params.cache_starts, b), length = index_at(params.cache_lengths, b);
    TORCH_CHECK_INDEX(end >= begin && end <= params.num_rows, kAttentionOp, ": row_offsets[", b + 1, "] is ", end,
                      ", expected [", begin, ", ", params.num_rows, "], from the offset before it to the rows of q");
    TORCH_CHECK_INDEX(start >= 0 && start <= num_slots, kAttentionOp, ": cache_starts[", b, "] is ", start,
                      ", expected [0, ", num_slots, "], the rows of the cache");
    TORCH_CHECK_INDEX(length >= end - begin && length <= num_slots - start, kAttentionOp, ": cache_lengths[", b,
                      "] is ", length, ", expected [", end - begin, ", ", num_slots - start,
                      "], from the sequence's own rows to the cache rows past its start");
  }
}

at::Tensor draft_attention(const at::Tensor& q_, const at::Tensor& k_cache_, const at::Tensor& v_cache_,
                           const at::Tensor& row_offsets_, const at::Tensor& cache_starts_,
                           const at::Tensor& cache_lengths_, double scale, std::optional<int64_t> window) {
  Arg q(kAttentionOp, "q", q_), k_cache(kAttentionOp, "k_cache", k_cache_), v_cache(kAttentionOp, "v_cache", v_cache_);
  Arg row_offsets(kAttentionOp, "row_offsets", row_offsets_), starts(kAttentionOp, "cache_starts", cache_starts_);
  Arg lengths(kAttentionOp, "cache_lengths", cache_lengths_);
  q.shape({-1, -1, -1}, "[n, num_q_heads, d]").readable_rows();
  k_cache.shape({-1, -1, q.size(2)}, "[slots, num_kv_heads, d]").same_dtype_and_device(q).readable_heads();
  const int64_t nq = q.size(1), nkv = k_cache.size(1), batch = starts.shape({-1}, "[B]").same_device(q).size(0);
  v_cache.shape({k_cache.size(0), nkv, -1}, "[slots, num_kv_heads, d_v]").same_dtype_and_device(q).readable_heads();
  const int64_t value_dim = v_cache.size(2);
  TORCH_CHECK_VALUE(nkv > 0 && nq % nkv == 0, kAttentionOp, ": q has ", nq,
                    " heads, expected a multiple of the cache's ", nkv);
  check_head_sizes(kAttentionOp, q_, q.size(2), value_dim);
  row_offsets.shape({batch + 1}, "[B + 1]").same_device(q);
  lengths.shape({batch}, "[B]").same_device(q);
  TORCH_CHECK_VALUE(!window || *window > 0, kAttentionOp, ": window is ", window.value_or(0),
                    ", expected None or at least 1: a row sees its own key");

  at::Tensor out = at::empty({q.size(0), nq * value_dim}, q_.options());
  const at::Tensor memory = workspace<cuda::draft_attention_workspace>(q_, q.size(0), nq, q.size(2), value_dim);
  const DraftAttentionParams params{
      .dtype = q.dtype(),
      .q = q.data(),
      .q_stride = q.row_stride(),
      .k_cache = k_cache.data(),
      .v_cache = v_cache.data(),
      .k_stride = k_cache.tensor().stride(0),
      .k_head_stride = k_cache.tensor().stride(1),
      .v_stride = v_cache.tensor().stride(0),
      .v_head_stride = v_cache.tensor().stride(1),
      .row_offsets = row_offsets.indices(),
      .cache_starts = starts.indices(),
      .cache_lengths = lengths.indices(),
      .batch = batch,
      .num_rows = q.size(0),
      .num_q_heads = nq,
      .num_kv_heads = nkv,
      .head_dim = q.size(2),
      .value_dim = value_dim,
      .window = window.value_or(0),
      .scale = static_cast<float>(scale),
      .out = out.mutable_data_ptr(),
      .num_slots = k_cache.size(0),
      .workspace = address_or_null(memory),
  };
  if (can_read_values(q_)) check_ranges(params, k_cache.size(0));
  launch<cpu::draft_attention, cuda::draft_attention>(kAttentionOp, q_, params);
  return out;
}

}  // namespace

void check_head_sizes(const char* op, const at::Tensor& tensor, int64_t head_dim, int64_t value_dim) {
  if (has_cpu_kernel(tensor)) return;
  TORCH_CHECK_VALUE(head_dim <= cuda::kMaxHeadDim && value_dim <= cuda::kMaxValueDim, op, ": heads have ", head_dim,
                    " dimensions and values ", value_dim, "; the CUDA kernel takes up to ", cuda::kMaxHeadDim, " and ",
                    cuda::kMaxValueDim);
}

}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("draft_attention", eagle3::draft_attention); }
