#include "forward.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "../ops/linear.h"

namespace eagle3 {
namespace {

const void* data_or_null(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

Indices indices(const std::vector<int64_t>& values) { return {values.data(), /*is_int32=*/false}; }

std::optional<at::Tensor> present(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

}  // namespace

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return DType::kFloat32;
    case at::kBFloat16: return DType::kBFloat16;
    case at::kHalf: return DType::kFloat16;
    default: TORCH_CHECK_VALUE(false, "the drafter runs in float32, bfloat16 or float16, not ", tensor.scalar_type());
  }
}

void Rows::close_group(int64_t cache_start, int64_t cache_length) {
  if (row_offsets.empty()) row_offsets.push_back(0);
  row_offsets.push_back(static_cast<int64_t>(slots.size()));  // tokens may hold the rows of later groups already
  cache_starts.push_back(cache_start);
  cache_lengths.push_back(cache_length);
}

Forward::Forward(const DrafterSizes& sizes, DrafterWeights weights, int64_t max_rows)
    : sizes_(sizes), weights_(std::move(weights)) {
  dtype_of(weights_.embedding);  // refuses other dtypes before anything is allocated
  const auto buffer = [&](int64_t width) { return at::empty({max_rows, width}, options()); };
  if (sizes.feature_norm != FeatureNorm::kNone) normed_ = buffer(sizes.features_width());
  u_ = buffer(sizes.hidden_size);
  x_ = buffer(2 * sizes.hidden_size);
  qkv_ = buffer(sizes.qkv_width());
  attended_ = buffer(sizes.q_width());
  hidden_ = buffer(sizes.hidden_size);
  gate_up_ = buffer(2 * sizes.intermediate_size);
  act_ = buffer(sizes.intermediate_size);
}

void Forward::normalise_features(const at::Tensor& features, const at::Tensor& out) const {
  std::vector<int64_t> rows(features.size(0));
  std::iota(rows.begin(), rows.end(), 0);
  const bool whole = sizes_.feature_norm == FeatureNorm::kWhole;
  GatherConcatParams params{};
  params.dtype = dtype_of(features);
  params.num_states = whole ? 1 : sizes_.num_states;
  params.hidden_size = whole ? sizes_.features_width() : sizes_.target_hidden_size;
  params.num_source_rows = features.size(0);
  params.num_norm_weights = params.num_states;
  const auto* first = static_cast<const char*>(features.const_data_ptr());
  for (int64_t j = 0; j < params.num_states; ++j) {
    params.states[j] = first + j * params.hidden_size * features.element_size();
    params.state_strides[j] = features.stride(0);
    params.norm_weights[j] = weights_.feature_norms[j].const_data_ptr();
  }
  params.rows = indices(rows);
  params.num_rows = features.size(0);
  params.eps = static_cast<float>(sizes_.eps);
  params.out = out.data_ptr();
  params.out_stride = out.stride(0);
  cpu::gather_concat(params);
}

void Forward::fuse(const at::Tensor& features) {
  at::Tensor input = features;
  if (normed_.defined()) {
    input = normed_.narrow(0, 0, features.size(0));
    normalise_features(features, input);
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

void Forward::draft_input(const Rows& rows, const at::Tensor& u, const at::Tensor& x) const {
  DraftInputParams params{};
  params.dtype = dtype_of(u);
  params.tokens = indices(rows.tokens);
  params.hidden = u.const_data_ptr();
  params.hidden_stride = u.stride(0);
  params.embed_weight = weights_.embedding.const_data_ptr();
  if (rows.token_embeddings.defined()) {
    params.embed_weight = nullptr;
    params.token_embeddings = rows.token_embeddings.const_data_ptr();
    params.token_embeddings_stride = rows.token_embeddings.stride(0);
  }
  params.embed_norm = weights_.embed_norm.const_data_ptr();
  params.hidden_norm = data_or_null(weights_.hidden_norm);
  params.eps = static_cast<float>(sizes_.eps);
  params.num_rows = rows.size();
  params.hidden_size = sizes_.hidden_size;
  params.vocab_size = sizes_.vocab_size;
  params.x = x.data_ptr();
  cpu::draft_input(params);
}

at::Tensor Forward::attention(const Rows& rows, KvCache& cache) {
  const int64_t n = rows.size();
  at::Tensor qkv = qkv_.narrow(0, 0, n), attended = attended_.narrow(0, 0, n);
  linear(x_.narrow(0, 0, n), weights_.qkv, std::nullopt, qkv);

  RopeAppendParams rope{};
  rope.dtype = dtype_of(qkv);
  rope.qkv = qkv.data_ptr();
  rope.qkv_stride = qkv.stride(0);
  rope.positions = indices(rows.positions);
  rope.slots = indices(rows.slots);
  rope.cos_sin = weights_.cos_sin.const_data_ptr<float>();
  rope.num_rows = n;
  rope.num_q_heads = sizes_.num_q_heads;
  rope.num_kv_heads = sizes_.num_kv_heads;
  rope.head_dim = rope.rotary_dim = sizes_.head_dim;
  rope.max_position = weights_.cos_sin.size(0);
  rope.k_cache = cache.k();
  rope.v_cache = cache.v();
  rope.num_slots = cache.num_slots();
  cpu::rope_append(rope);

  DraftAttentionParams params{};
  params.dtype = rope.dtype;
  params.q = qkv.const_data_ptr();
  params.q_stride = qkv.stride(0);
  params.k_cache = cache.k();
  params.v_cache = cache.v();
  params.k_stride = params.v_stride = sizes_.num_kv_heads * sizes_.head_dim;
  params.k_head_stride = params.v_head_stride = sizes_.head_dim;
  params.row_offsets = indices(rows.row_offsets);
  params.cache_starts = indices(rows.cache_starts);
  params.cache_lengths = indices(rows.cache_lengths);
  params.batch = static_cast<int64_t>(rows.cache_starts.size());
  params.num_rows = n;
  params.num_q_heads = sizes_.num_q_heads;
  params.num_kv_heads = sizes_.num_kv_heads;
  params.head_dim = sizes_.head_dim;
  params.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes_.head_dim)));
  params.out = attended.data_ptr();
  cpu::draft_attention(params);
  return attended;
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
  cpu::add_rms_norm(params);
}

void Forward::layer(const Rows& rows, KvCache& cache) {
  const int64_t n = rows.size(), h = sizes_.hidden_size;
  const at::Tensor u = u_.narrow(0, 0, n), x = x_.narrow(0, 0, n);
  draft_input(rows, u, x);
  const at::Tensor attended = attention(rows, cache);

  // x has been read for the last time, so its right half, the normed hidden, can serve as the residual stream in place.
  const at::Tensor residual = sizes_.norm_before_residual ? x.narrow(1, h, h) : u;
  at::Tensor hidden = hidden_.narrow(0, 0, n);
  linear(attended, weights_.o, std::nullopt, hidden);
  add_rms_norm(hidden, residual, weights_.mlp_norm);

  at::Tensor gate_up = gate_up_.narrow(0, 0, n), act = act_.narrow(0, 0, n);
  linear(hidden, weights_.gate_up, std::nullopt, gate_up);
  SiluMulParams silu{};
  silu.dtype = dtype_of(gate_up);
  silu.gate_up = gate_up.const_data_ptr();
  silu.out = act.data_ptr();
  silu.num_rows = n;
  silu.intermediate_size = sizes_.intermediate_size;
  silu.gate_up_stride = gate_up.stride(0);
  cpu::silu_mul(silu);
  linear(act, weights_.down, std::nullopt, hidden);
  add_rms_norm(hidden, residual, weights_.final_norm);
  s_ = residual;
  y_ = hidden;
}

at::Tensor Forward::head(const at::Tensor& y) {
  if (!logits_.defined() || logits_.size(0) < y.size(0)) {
    logits_ = at::empty({y.size(0), sizes_.draft_vocab_size}, options());
  }
  at::Tensor logits = logits_.narrow(0, 0, y.size(0));
  linear(y, weights_.head, std::nullopt, logits);
  if (sizes_.logit_scale != 1.0) logits.mul_(sizes_.logit_scale);
  return logits;
}

}  // namespace eagle3
