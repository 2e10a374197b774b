// The drafter's weights as its kernels want them: q, k, v in one matrix, gate and up in another, all contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "sizes.h"

namespace eagle3 {

using WeightsByName = std::unordered_map<std::string, at::Tensor>;

// Multi-head latent attention's projections: the first of q and the one of the cache in one matrix, kv_b_proj taken
// apart into what is multiplied into q and what into the output, so that the cache never becomes heads.
struct LatentWeights {
  at::Tensor first, first_bias;  // [(q_lora | nq * d) + kv_lora + rope, 2h | h]
  at::Tensor q_norm, q;          // [q_lora], [nq * d, q_lora]; absent without a latent of q
  at::Tensor kv_norm;            // [kv_lora]
  at::Tensor k_up, v_up;         // [nq, nope, kv_lora], [nq, kv_lora, v]
};

// Undefined tensors are absent ones; DrafterSizes says which.
struct LayerWeights {
  at::Tensor input_norm, hidden_norm;       // [h]
  at::Tensor qkv, qkv_bias;                 // [(nq + 2*nkv) * d, 2h | h], [(nq + 2*nkv) * d]
  at::Tensor q_norm, k_norm;                // [d]
  LatentWeights latent;                     // instead of qkv, q_norm and k_norm
  at::Tensor o, o_bias;                     // [h, nq * d], [h]
  at::Tensor mlp_norm;                      // [h]
  at::Tensor gate_up, gate_up_bias;         // [2i, h], [2i]
  at::Tensor down, down_bias;               // [h, i], [h]
};

struct DrafterWeights {
  at::Tensor fc, fc_bias;                 // [h, K*H], [h]
  std::vector<at::Tensor> feature_norms;  // none, one of [K*H], or K of [H]
  at::Tensor embedding;                   // [V, h]
  std::vector<LayerWeights> layers;
  at::Tensor final_norm, head;            // [h], [Vd, h]
  at::Tensor target_ids;                  // int64 [Vd], absolute
  at::Tensor cos_sin;                     // fp32 [positions, d]

  // Takes canonical names (eagle3_ext/checkpoint/config.py) plus `embed_tokens.weight`, `lm_head.weight` and `cos_sin`.
  // ValueError for a missing tensor, or one of another shape, dtype or device than the sizes and the embedding call for.
  static DrafterWeights from_names(const DrafterSizes& sizes, const WeightsByName& named);
};

}  // namespace eagle3
