// Forward's two kinds of attention: grouped-query, and multi-head latent attention in its absorbed form.
#include <ATen/ops/bmm.h>

#include "../ops/launch.h"
#include "../ops/linear.h"
#include "forward.h"

namespace eagle3 {

// out [n, nq * value_dim] = attention of q [n, nq, key dims] to the cache; q's heads lie next to each other.
void Forward::attend(int64_t index, const at::Tensor& q, int64_t value_dim, const Rows& rows, const KvCache& cache,
                     const at::Tensor& out) const {
  const at::Tensor &k = cache.k(index), &v = cache.v(index);
  DraftAttentionParams params{};
  params.dtype = dtype_of(q);
  params.q = q.const_data_ptr();
  params.q_stride = q.stride(0);
  params.k_cache = k.const_data_ptr();
  params.v_cache = v.const_data_ptr();
  params.k_stride = k.stride(0);
  params.k_head_stride = k.stride(1);
  params.v_stride = v.stride(0);
  params.v_head_stride = v.stride(1);
  params.row_offsets = rows.row_offsets;
  params.cache_starts = rows.cache_starts;
  params.cache_lengths = rows.cache_lengths;
  params.batch = rows.batch;
  params.num_rows = rows.count;
  params.num_q_heads = sizes_.num_q_heads;
  params.num_kv_heads = k.size(1);
  params.head_dim = k.size(2);
  params.value_dim = value_dim;
  params.window = sizes_.layers[index].window;
  params.scale = static_cast<float>(sizes_.attention_scale);
  params.out = out.data_ptr();
  params.num_slots = cache.num_slots();
  params.workspace = address_or_null(attention_workspace_);
  launch<cpu::draft_attention, cuda::draft_attention>(kDrafter, q, params);
}

at::Tensor Forward::attention(int64_t index, const at::Tensor& x, const Rows& rows, const KvCache& cache) const {
  const LayerWeights& layer = weights_.layers[index];
  at::Tensor qkv = qkv_.narrow(0, 0, rows.count);
  linear(x, layer.qkv, present(layer.qkv_bias), qkv);
  if (layer.q_norm.defined()) {
    const HeadRmsNormParams norm{.dtype = dtype_of(qkv),
                                 .qkv = qkv.data_ptr(),
                                 .qkv_stride = qkv.stride(0),
                                 .q_weight = layer.q_norm.const_data_ptr(),
                                 .k_weight = layer.k_norm.const_data_ptr(),
                                 .eps = static_cast<float>(sizes_.eps),
                                 .num_rows = rows.count,
                                 .num_q_heads = sizes_.num_q_heads,
                                 .num_kv_heads = sizes_.num_kv_heads,
                                 .head_dim = sizes_.head_dim};
    launch<cpu::head_rms_norm, cuda::head_rms_norm>(kDrafter, qkv, norm);
  }
  const RopeAppendParams rope{.dtype = dtype_of(qkv),
                              .qkv = qkv.data_ptr(),
                              .qkv_stride = qkv.stride(0),
                              .positions = rows.positions,
                              .slots = rows.slots,
                              .cos_sin = weights_.cos_sin.const_data_ptr<float>(),
                              .num_rows = rows.count,
                              .num_q_heads = sizes_.num_q_heads,
                              .num_kv_heads = sizes_.num_kv_heads,
                              .head_dim = sizes_.head_dim,
                              .rotary_dim = sizes_.rotary_dim(),
                              .max_position = weights_.cos_sin.size(0),
                              .k_cache = cache.k(index).data_ptr(),
                              .v_cache = cache.v(index).data_ptr(),
                              .num_slots = cache.num_slots()};
  launch<cpu::rope_append, cuda::rope_append>(kDrafter, qkv, rope);
  const at::Tensor attended = attended_.narrow(0, 0, rows.count);
  attend(index, qkv, sizes_.head_dim, rows, cache, attended);
  return attended;
}

// kv_b_proj is linear, so it may be applied to q and to what attention gives, once per row, instead of to every cached
// row: scores are (q_nope W_k) . latent + q_rope . k_rope, and the output is W_v of the mixed latents.
at::Tensor Forward::latent_attention(int64_t index, const at::Tensor& x, const Rows& rows, const KvCache& cache) const {
  const LatentWeights& weights = weights_.layers[index].latent;
  const LatentSizes& latent = sizes_.latent;
  const int64_t n = rows.count, heads = sizes_.num_q_heads, nope = latent.nope_head_dim, lora = latent.kv_lora_rank;
  at::Tensor joint = joint_.narrow(0, 0, n);
  linear(x, weights.first, present(weights.first_bias), joint);
  const int64_t kv_begin = joint.size(1) - latent.cache_width();
  const at::Tensor first_q = joint.narrow(1, 0, kv_begin), kv = joint.narrow(1, kv_begin, latent.cache_width());
  at::Tensor q = first_q;
  if (weights.q.defined()) {
    const at::Tensor q_latent = q_latent_.narrow(0, 0, n);
    rms_norm(first_q, {weights.q_norm}, q_latent);
    q = q_.narrow(0, 0, n);
    linear(q_latent, weights.q, std::nullopt, q);
  }
  const at::Tensor q_heads = q.unflatten(1, {heads, sizes_.head_dim}), absorbed = absorbed_.narrow(0, 0, n);
  const at::Tensor q_pe = absorbed.narrow(2, lora, latent.rope_head_dim);
  absorbed.narrow(2, 0, lora).copy_(at::bmm(q_heads.narrow(2, 0, nope).transpose(0, 1), weights.k_up).transpose(0, 1));
  q_pe.copy_(q_heads.narrow(2, nope, latent.rope_head_dim));

  const MlaAppendParams append{.dtype = dtype_of(kv),
                               .q_pe = q_pe.data_ptr(),
                               .q_stride = q_pe.stride(0),
                               .q_head_stride = q_pe.stride(1),
                               .kv = kv.const_data_ptr(),
                               .kv_stride = kv.stride(0),
                               .kv_weight = weights.kv_norm.const_data_ptr(),
                               .eps = static_cast<float>(sizes_.eps),
                               .positions = rows.positions,
                               .slots = rows.slots,
                               .cos_sin = weights_.cos_sin.const_data_ptr<float>(),
                               .num_rows = n,
                               .num_heads = heads,
                               .latent_dim = lora,
                               .rope_dim = latent.rope_head_dim,
                               .max_position = weights_.cos_sin.size(0),
                               .cache = cache.k(index).data_ptr(),
                               .num_slots = cache.num_slots()};
  launch<cpu::mla_append, cuda::mla_append>(kDrafter, kv, append);
  const at::Tensor mixed = attended_latent_.narrow(0, 0, n), attended = attended_.narrow(0, 0, n);
  attend(index, absorbed, lora, rows, cache, mixed);
  attended.view({n, heads, latent.v_head_dim}).copy_(at::bmm(mixed.transpose(0, 1), weights.v_up).transpose(0, 1));
  return attended;
}

}  // namespace eagle3
