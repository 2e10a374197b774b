#include "weights.h"

#include <c10/util/Exception.h>

namespace eagle3 {
namespace {

// Hands out tensors by name; every tensor must have the shape asked for and the dtype of the first one.
class Reader {
 public:
  explicit Reader(const WeightsByName& named) : named_(named) {}

  at::Tensor required(const std::string& name, at::IntArrayRef shape) {
    const auto found = named_.find(name);
    TORCH_CHECK_VALUE(found != named_.end(), "the drafter needs ", name, " ", shape, ", which is missing");
    const at::Tensor& tensor = found->second;
    TORCH_CHECK_VALUE(tensor.sizes() == shape, name, " is ", tensor.sizes(), ", expected ", shape);
    TORCH_CHECK_VALUE(tensor.device().is_cpu(), name, " is on ", tensor.device(), "; the drafter runs on the CPU");
    if (dtype_ == at::kByte) dtype_ = tensor.scalar_type();
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype_, name, " is ", tensor.scalar_type(), ", other weights are ",
                      dtype_);
    return tensor.detach().contiguous();
  }

 private:
  const WeightsByName& named_;
  at::ScalarType dtype_ = at::kByte;  // no weight's dtype: none seen yet
};

void read_fusion(const DrafterSizes& sizes, Reader& reader, DrafterWeights& weights) {
  const int64_t h = sizes.hidden_size, width = sizes.features_width();
  if (sizes.fused) {
    weights.fc = reader.required("fc.weight", {h, width});
    if (sizes.fc_bias) weights.fc_bias = reader.required("fc.bias", {h});
  }
  if (sizes.feature_norm == FeatureNorm::kWhole) {
    weights.feature_norms.push_back(reader.required("input_norm.weight", {width}));
  } else if (sizes.feature_norm == FeatureNorm::kPerState) {
    for (int64_t j = 0; j < sizes.num_states; ++j) {
      weights.feature_norms.push_back(
          reader.required("fc_norm." + std::to_string(j) + ".weight", {sizes.target_hidden_size}));
    }
  }
}

void read_layer(const DrafterSizes& sizes, Reader& reader, DrafterWeights& weights) {
  const std::string layer = "layers.0.", attention = layer + "self_attn.", mlp = layer + "mlp.";
  const int64_t h = sizes.hidden_size, i = sizes.intermediate_size;
  const int64_t kv_width = sizes.num_kv_heads * sizes.head_dim;
  weights.embed_norm = reader.required(layer + "input_layernorm.weight", {h});
  if (sizes.has_hidden_norm) weights.hidden_norm = reader.required(layer + "hidden_norm.weight", {h});
  weights.mlp_norm = reader.required(layer + "post_attention_layernorm.weight", {h});
  weights.qkv = at::cat({reader.required(attention + "q_proj.weight", {sizes.q_width(), 2 * h}),
                         reader.required(attention + "k_proj.weight", {kv_width, 2 * h}),
                         reader.required(attention + "v_proj.weight", {kv_width, 2 * h})});
  weights.o = reader.required(attention + "o_proj.weight", {h, sizes.q_width()});
  weights.gate_up =
      at::cat({reader.required(mlp + "gate_proj.weight", {i, h}), reader.required(mlp + "up_proj.weight", {i, h})});
  weights.down = reader.required(mlp + "down_proj.weight", {h, i});
}

at::Tensor read_target_ids(const DrafterSizes& sizes, const WeightsByName& named) {
  const auto found = named.find("target_ids");
  if (found == named.end()) {
    TORCH_CHECK_VALUE(sizes.draft_vocab_size == sizes.vocab_size, "target_ids is missing: ", sizes.draft_vocab_size,
                      " draft ids do not name ", sizes.vocab_size, " tokens by themselves");
    return {};
  }
  const at::Tensor ids = found->second.contiguous();
  TORCH_CHECK_VALUE(ids.scalar_type() == at::kLong && ids.sizes() == at::IntArrayRef{sizes.draft_vocab_size},
                    "target_ids is ", ids.scalar_type(), " ", ids.sizes(), ", expected int64 [", sizes.draft_vocab_size,
                    "]");
  const int64_t low = ids.min().item<int64_t>(), high = ids.max().item<int64_t>();
  TORCH_CHECK_VALUE(low >= 0 && high < sizes.vocab_size, "target_ids spans ", low, " to ", high,
                    ", outside the vocabulary of ", sizes.vocab_size);
  return ids;
}

}  // namespace

DrafterWeights DrafterWeights::from_names(const DrafterSizes& sizes, const WeightsByName& named) {
  DrafterWeights weights;
  Reader reader(named);
  read_fusion(sizes, reader, weights);
  read_layer(sizes, reader, weights);
  weights.embedding = reader.required("embed_tokens.weight", {sizes.vocab_size, sizes.hidden_size});
  if (sizes.has_final_norm) weights.final_norm = reader.required("norm.weight", {sizes.hidden_size});
  weights.head = reader.required("lm_head.weight", {sizes.draft_vocab_size, sizes.hidden_size});
  weights.target_ids = read_target_ids(sizes, named);

  const auto table = named.find("cos_sin");
  TORCH_CHECK_VALUE(table != named.end(), "the drafter needs cos_sin, the RoPE table");
  weights.cos_sin = table->second.contiguous();
  TORCH_CHECK_VALUE(weights.cos_sin.scalar_type() == at::kFloat && weights.cos_sin.dim() == 2 &&
                        weights.cos_sin.size(1) == sizes.head_dim,
                    "cos_sin is ", weights.cos_sin.scalar_type(), " ", weights.cos_sin.sizes(),
                    ", expected float32 [positions, ", sizes.head_dim, "]");
  return weights;
}

}  // namespace eagle3
