#include "forward.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "../ops/launch.h"
#include "../ops/linear.h"

namespace eagle3 {

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return DType::kFloat32;
    case at::kBFloat16: return DType::kBFloat16;
    case at::kHalf: return DType::kFloat16;
    default: TORCH_CHECK_VALUE(false, "the drafter runs in float32, bfloat16 or float16, not ", tensor.scalar_type());
  }
}

Indices indices(const at::Tensor& contiguous) {
  return {contiguous.const_data_ptr(), contiguous.scalar_type() == at::kInt};
}

Forward::Forward(const DrafterSizes& sizes, DrafterWeights weights, int64_t max_rows, int64_t max_batch)
    : sizes_(sizes), weights_(std::move(weights)) {
  // Refuses what no kernel takes before anything is allocated.
  dtype_of(weights_.embedding);
  check_device(kDrafter, weights_.embedding);
  TORCH_CHECK_VALUE(sizes.feature_norm != FeatureNorm::kPerState || sizes.num_states <= kMaxStates, kDrafter, ": ",
                    sizes.num_states, " states are normed one by one, expected at most ", kMaxStates);
  const int64_t key_dim = sizes.is_latent() ? sizes.latent.cache_width() : sizes.head_dim;
  const int64_t value_dim = sizes.is_latent() ? sizes.latent.kv_lora_rank : sizes.head_dim;
  check_head_sizes(kDrafter, weights_.embedding, key_dim, value_dim);
  const auto buffer = [&](int64_t width) { return at::empty({max_rows, width}, options()); };
  if (sizes.feature_norm != FeatureNorm::kNone) normed_ = buffer(sizes.features_width());
  every_row_ = at::arange(max_rows, options().dtype(at::kLong));
  u_ = buffer(sizes.hidden_size);
  x_ = buffer(2 * sizes.hidden_size);
  attended_ = buffer(sizes.attended_width());
  hidden_ = buffer(sizes.hidden_size);
  gate_up_ = buffer(2 * sizes.intermediate_size);
  act_ = buffer(sizes.intermediate_size);
  logits_ = at::empty({max_batch, sizes.draft_vocab_size}, options());
  if (sizes.is_latent()) {
    const LatentSizes& latent = sizes.latent;
    joint_ = buffer(weights_.layers[0].latent.first.size(0));
    if (latent.q_lora_rank > 0) {
      q_latent_ = buffer(latent.q_lora_rank);
      q_ = buffer(sizes.q_width());
    }
    absorbed_ = buffer(sizes.num_q_heads * key_dim).view({max_rows, sizes.num_q_heads, key_dim});
    attended_latent_ = buffer(sizes.num_q_heads * value_dim).view({max_rows, sizes.num_q_heads, value_dim});
  } else {
    qkv_ = buffer(sizes.qkv_width());
  }
  attention_workspace_ =
      workspace<cuda::draft_attention_workspace>(u_, max_rows, sizes.num_q_heads, key_dim, value_dim);
}

// out = RMS(in; gain) for rows `in`, cut into as many parts as there are gains.
void Forward::rms_norm(const at::Tensor& in, const std::vector<at::Tensor>& gains, const at::Tensor& out) const {
  GatherConcatParams params{};
  params.dtype = dtype_of(in);
  params.num_states = params.num_norm_weights = static_cast<int64_t>(gains.size());
  params.hidden_size = gains[0].size(0);
  params.num_source_rows = params.num_rows = in.size(0);
  const auto* first = static_cast<const char*>(in.const_data_ptr());
  for (int64_t j = 0; j < params.num_states; ++j) {
    params.states[j] = first + j * params.hidden_size * in.element_size();
    params.state_strides[j] = in.stride(0);
    params.norm_weights[j] = gains[j].const_data_ptr();
  }
  params.rows = {every_row_.const_data_ptr()};
  params.eps = static_cast<float>(sizes_.eps);
  params.out = out.data_ptr();
  params.out_stride = out.stride(0);
  launch<cpu::gather_concat, cuda::gather_concat>(kDrafter, in, params);
}

void Forward::fuse(const at::Tensor& features) {
  at::Tensor input = features;
  if (normed_.defined()) {
    input = normed_.narrow(0, 0, features.size(0));
    rms_norm(features, weights_.feature_norms, input);
  }
  at::Tensor u = u_.narrow(0, 0, features.size(0));
  if (sizes_.fused) {
    linear(input, weights_.fc, present(weights_.fc_bias), u);
  } else {
    u.copy_(input);  // the layer adds into u, and features are not ours to write
  }
}

void Forward::feed(const at::Tensor& recurrent) {
  if (recurrent.const_data_ptr() == u_.const_data_ptr()) return;  // the last step's s was left in u
  u_.narrow(0, 0, recurrent.size(0)).copy_(recurrent);
}

// What the layer's q, k and v are made of: [n, 2h] where it joins the embedding, else `hidden`, which is normed already.
at::Tensor Forward::layer_input(const LayerWeights& layer, bool joins_embedding, const Rows& rows,
                                const at::Tensor& hidden) const {
  if (!joins_embedding) return hidden;
  const at::Tensor x = x_.narrow(0, 0, rows.count);
  DraftInputParams params{};
  params.dtype = dtype_of(hidden);
  params.tokens = rows.tokens;
  params.hidden = hidden.const_data_ptr();
  params.hidden_stride = hidden.stride(0);
  params.embed_weight = weights_.embedding.const_data_ptr();
  if (rows.token_embeddings.defined()) {
    params.embed_weight = nullptr;
    params.token_embeddings = rows.token_embeddings.const_data_ptr();
    params.token_embeddings_stride = rows.token_embeddings.stride(0);
  }
  params.embed_norm = layer.input_norm.const_data_ptr();
  params.hidden_norm = address_or_null(layer.hidden_norm);
  params.eps = static_cast<float>(sizes_.eps);
  params.num_rows = rows.count;
  params.hidden_size = sizes_.hidden_size;
  params.vocab_size = sizes_.vocab_size;
  params.x = x.data_ptr();
  launch<cpu::draft_input, cuda::draft_input>(kDrafter, hidden, params);
  return x;
}

// hidden = W_down(silu(W_gate z) * W_up z) of z = hidden.
void Forward::mlp(const LayerWeights& layer, const at::Tensor& hidden) const {
  at::Tensor gate_up = gate_up_.narrow(0, 0, hidden.size(0)), act = act_.narrow(0, 0, hidden.size(0)), out = hidden;
  linear(hidden, layer.gate_up, present(layer.gate_up_bias), gate_up);
  SiluMulParams params{};
  params.dtype = dtype_of(gate_up);
  params.gate_up = gate_up.const_data_ptr();
  params.out = act.data_ptr();
  params.num_rows = gate_up.size(0);
  params.intermediate_size = sizes_.intermediate_size;
  params.gate_up_stride = gate_up.stride(0);
  launch<cpu::silu_mul, cuda::silu_mul>(kDrafter, gate_up, params);
  linear(act, layer.down, present(layer.down_bias), out);
}

// residual = round(hidden + residual); hidden = RMS(residual; weight), or the residual itself without a weight.
void Forward::add_rms_norm(const at::Tensor& hidden, const at::Tensor& residual, const at::Tensor& weight) const {
  if (!weight.defined()) {
    residual.add_(hidden);
    hidden.copy_(residual);
    return;
  }
  AddRmsNormParams params{};
  params.dtype = dtype_of(hidden);
  params.hidden = hidden.data_ptr();
  params.residual = residual.data_ptr();
  params.weight = weight.const_data_ptr();
  params.rows = hidden.size(0);
  params.hidden_size = sizes_.hidden_size;
  params.hidden_stride = hidden.stride(0);
  params.residual_stride = residual.stride(0);
  params.eps = static_cast<float>(sizes_.eps);
  launch<cpu::add_rms_norm, cuda::add_rms_norm>(kDrafter, hidden, params);
}

void Forward::layers(const Rows& rows, const KvCache& cache) {
  const int64_t h = sizes_.hidden_size, count = static_cast<int64_t>(weights_.layers.size());
  const at::Tensor u = u_.narrow(0, 0, rows.count);
  at::Tensor hidden = hidden_.narrow(0, 0, rows.count), residual = u;
  for (int64_t i = 0; i < count; ++i) {
    const LayerWeights& layer = weights_.layers[i];
    const bool joins = sizes_.layers[i].joins_embedding;
    const at::Tensor x = layer_input(layer, joins, rows, joins ? residual : hidden);
    const at::Tensor attended =
        sizes_.is_latent() ? latent_attention(i, x, rows, cache) : attention(i, x, rows, cache);
    // x has been read for the last time. A lone layer may go on in its right half, the normed hidden; a later layer would
    // overwrite that with its own x.
    if (i == 0 && sizes_.norm_before_residual) residual = count == 1 ? x.narrow(1, h, h) : u.copy_(x.narrow(1, h, h));
    linear(attended, layer.o, present(layer.o_bias), hidden);
    add_rms_norm(hidden, residual, layer.mlp_norm);
    mlp(layer, hidden);
    const bool is_last = i + 1 == count, next_joins = !is_last && sizes_.layers[i + 1].joins_embedding;
    const at::Tensor next_norm = is_last      ? weights_.final_norm
                                 : next_joins ? at::Tensor()
                                              : weights_.layers[i + 1].input_norm;
    add_rms_norm(hidden, residual, next_norm);
  }
  s_ = residual;
  y_ = hidden;
}

at::Tensor Forward::head(const at::Tensor& y) const {
  at::Tensor logits = logits_.narrow(0, 0, y.size(0));
  linear(y, weights_.head, std::nullopt, logits);
  if (sizes_.logit_scale != 1.0) logits.mul_(sizes_.logit_scale);
  return logits;
}

}  // namespace eagle3
