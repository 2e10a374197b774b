#include "weights.h"

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

namespace eagle3 {
namespace {

// Hands out tensors by name; every tensor must have the shape asked for, and the embedding's dtype and device.
class Reader {
 public:
  explicit Reader(const WeightsByName& named) : named_(named), like_(found("embed_tokens.weight")) {}

  at::Tensor required(const std::string& name, at::IntArrayRef shape) const {
    const at::Tensor& tensor = found(name);
    TORCH_CHECK_VALUE(tensor.sizes() == shape, name, " is ", tensor.sizes(), ", expected ", shape);
    TORCH_CHECK_VALUE(tensor.scalar_type() == like_.scalar_type(), name, " is ", tensor.scalar_type(),
                      ", embed_tokens.weight is ", like_.scalar_type());
    return on_device(name, tensor);
  }

  at::Tensor optional(bool is_present, const std::string& name, at::IntArrayRef shape) const {
    return is_present ? required(name, shape) : at::Tensor();
  }

  // `parts` below each other, all present or all absent.
  at::Tensor stacked(bool is_present, const std::vector<std::string>& names, const std::vector<int64_t>& heights,
                     at::IntArrayRef width) const {
    if (!is_present) return {};
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < names.size(); ++i) {
      std::vector<int64_t> shape = {heights[i]};
      shape.insert(shape.end(), width.begin(), width.end());
      parts.push_back(required(names[i], shape));
    }
    return at::cat(parts);
  }

  // A table that is no weight: its own dtype.
  at::Tensor table(const std::string& name, at::ScalarType type, at::IntArrayRef shape) const {
    const at::Tensor& tensor = found(name);
    const bool fits = tensor.dim() == static_cast<int64_t>(shape.size()) && (shape[0] < 0 || tensor.size(0) == shape[0]) &&
                      tensor.sizes().slice(1) == shape.slice(1);
    TORCH_CHECK_VALUE(tensor.scalar_type() == type && fits, name, " is ", tensor.scalar_type(), " ", tensor.sizes(),
                      ", expected ", type, " ", shape, " (-1: any)");
    return on_device(name, tensor);
  }

  bool has(const std::string& name) const { return named_.count(name) > 0; }

 private:
  const at::Tensor& found(const std::string& name) const {
    const auto it = named_.find(name);
    TORCH_CHECK_VALUE(it != named_.end(), "the drafter needs ", name, ", which is missing");
    return it->second;
  }

  at::Tensor on_device(const std::string& name, const at::Tensor& tensor) const {
    TORCH_CHECK_VALUE(tensor.device() == like_.device(), name, " is on ", tensor.device(),
                      ", embed_tokens.weight is on ", like_.device());
    return tensor.detach().contiguous();
  }

  const WeightsByName& named_;
  const at::Tensor& like_;
};

void read_fusion(const DrafterSizes& sizes, const Reader& reader, DrafterWeights& weights) {
  const int64_t h = sizes.hidden_size, width = sizes.features_width();
  weights.fc = reader.optional(sizes.fused, "fc.weight", {h, width});
  weights.fc_bias = reader.optional(sizes.fused && sizes.fc_bias, "fc.bias", {h});
  if (sizes.feature_norm == FeatureNorm::kWhole) {
    weights.feature_norms.push_back(reader.required("input_norm.weight", {width}));
  } else if (sizes.feature_norm == FeatureNorm::kPerState) {
    for (int64_t j = 0; j < sizes.num_states; ++j) {
      weights.feature_norms.push_back(
          reader.required("fc_norm." + std::to_string(j) + ".weight", {sizes.target_hidden_size}));
    }
  }
}

void read_heads(const DrafterSizes& sizes, const Reader& reader, const std::string& prefix, int64_t width,
                LayerWeights& layer) {
  const std::vector<int64_t> heights = {sizes.q_width(), sizes.kv_width(), sizes.kv_width()};
  const auto names = [&](const char* part) {
    return std::vector<std::string>{prefix + "q_proj." + part, prefix + "k_proj." + part, prefix + "v_proj." + part};
  };
  layer.qkv = reader.stacked(true, names("weight"), heights, {width});
  layer.qkv_bias = reader.stacked(sizes.qkv_bias, names("bias"), heights, {});
  layer.q_norm = reader.optional(sizes.qk_norm, prefix + "q_norm.weight", {sizes.head_dim});
  layer.k_norm = reader.optional(sizes.qk_norm, prefix + "k_norm.weight", {sizes.head_dim});
}

LatentWeights read_latent(const DrafterSizes& sizes, const Reader& reader, const std::string& prefix, int64_t width) {
  const LatentSizes& latent = sizes.latent;
  const bool has_q_latent = latent.q_lora_rank > 0;
  const std::string q = prefix + (has_q_latent ? "q_a_proj." : "q_proj."), kv = prefix + "kv_a_proj_with_mqa.";
  const std::vector<int64_t> heights = {has_q_latent ? latent.q_lora_rank : sizes.q_width(), latent.cache_width()};
  LatentWeights weights;
  weights.first = reader.stacked(true, {q + "weight", kv + "weight"}, heights, {width});
  weights.first_bias = reader.stacked(sizes.qkv_bias, {q + "bias", kv + "bias"}, heights, {});
  weights.q_norm = reader.optional(has_q_latent, prefix + "q_a_layernorm.weight", {latent.q_lora_rank});
  weights.q = reader.optional(has_q_latent, prefix + "q_b_proj.weight", {sizes.q_width(), latent.q_lora_rank});
  weights.kv_norm = reader.required(prefix + "kv_a_layernorm.weight", {latent.kv_lora_rank});
  const int64_t both = latent.nope_head_dim + latent.v_head_dim;
  const at::Tensor up = reader.required(prefix + "kv_b_proj.weight", {sizes.num_q_heads * both, latent.kv_lora_rank})
                            .view({sizes.num_q_heads, both, latent.kv_lora_rank});
  weights.k_up = up.narrow(1, 0, latent.nope_head_dim).contiguous();
  weights.v_up = up.narrow(1, latent.nope_head_dim, latent.v_head_dim).transpose(1, 2).contiguous();
  return weights;
}

LayerWeights read_layer(const DrafterSizes& sizes, const Reader& reader, int64_t index) {
  const std::string prefix = "layers." + std::to_string(index) + ".", mlp = prefix + "mlp.";
  const int64_t h = sizes.hidden_size, i = sizes.intermediate_size;
  const bool joins = sizes.layers[index].joins_embedding;
  LayerWeights layer;
  layer.input_norm = reader.required(prefix + "input_layernorm.weight", {h});
  layer.hidden_norm = reader.optional(joins && sizes.has_hidden_norm, prefix + "hidden_norm.weight", {h});
  const std::string attention = prefix + "self_attn.";
  if (sizes.is_latent()) {
    layer.latent = read_latent(sizes, reader, attention, joins ? 2 * h : h);
  } else {
    read_heads(sizes, reader, attention, joins ? 2 * h : h, layer);
  }
  layer.o = reader.required(attention + "o_proj.weight", {h, sizes.attended_width()});
  layer.o_bias = reader.optional(sizes.o_bias, attention + "o_proj.bias", {h});
  layer.mlp_norm = reader.required(prefix + "post_attention_layernorm.weight", {h});
  layer.gate_up = reader.stacked(true, {mlp + "gate_proj.weight", mlp + "up_proj.weight"}, {i, i}, {h});
  layer.gate_up_bias = reader.stacked(sizes.mlp_bias, {mlp + "gate_proj.bias", mlp + "up_proj.bias"}, {i, i}, {});
  layer.down = reader.required(mlp + "down_proj.weight", {h, i});
  layer.down_bias = reader.optional(sizes.mlp_bias, mlp + "down_proj.bias", {h});
  return layer;
}

at::Tensor read_target_ids(const DrafterSizes& sizes, const Reader& reader) {
  if (!reader.has("target_ids")) {
    TORCH_CHECK_VALUE(sizes.draft_vocab_size == sizes.vocab_size, "target_ids is missing: ", sizes.draft_vocab_size,
                      " draft ids do not name ", sizes.vocab_size, " tokens by themselves");
    return {};
  }
  const at::Tensor ids = reader.table("target_ids", at::kLong, {sizes.draft_vocab_size});
  const int64_t low = ids.min().item<int64_t>(), high = ids.max().item<int64_t>();
  TORCH_CHECK_VALUE(low >= 0 && high < sizes.vocab_size, "target_ids spans ", low, " to ", high,
                    ", outside the vocabulary of ", sizes.vocab_size);
  return ids;
}

}  // namespace

DrafterWeights DrafterWeights::from_names(const DrafterSizes& sizes, const WeightsByName& named) {
  const Reader reader(named);
  DrafterWeights weights;
  weights.embedding = reader.required("embed_tokens.weight", {sizes.vocab_size, sizes.hidden_size});
  read_fusion(sizes, reader, weights);
  for (size_t index = 0; index < sizes.layers.size(); ++index) {
    weights.layers.push_back(read_layer(sizes, reader, static_cast<int64_t>(index)));
  }
  weights.final_norm = reader.optional(sizes.has_final_norm, "norm.weight", {sizes.hidden_size});
  weights.head = reader.required("lm_head.weight", {sizes.draft_vocab_size, sizes.hidden_size});
  weights.target_ids = read_target_ids(sizes, reader);
  weights.cos_sin = reader.table("cos_sin", at::kFloat, {-1, sizes.rotary_dim()});
  return weights;
}

}  // namespace eagle3
