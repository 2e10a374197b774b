// The drafter's weights as its kernels want them: q, k, v in one matrix, gate and up in another, all contiguous.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "sizes.h"

namespace eagle3 {

using WeightsByName = std::unordered_map<std::string, at::Tensor>;

// Undefined tensors are absent ones; DrafterSizes says which.
struct DrafterWeights {
  at::Tensor fc, fc_bias;                 // [h, K*H], [h]
  std::vector<at::Tensor> feature_norms;  // none, one of [K*H], or K of [H]
  at::Tensor embedding;                   // [V, h]
  at::Tensor embed_norm, hidden_norm;     // [h]
  at::Tensor qkv, o;                      // [(nq + 2*nkv) * d, 2h], [h, nq * d]
  at::Tensor mlp_norm, gate_up, down;     // [h], [2i, h], [h, i]
  at::Tensor final_norm, head;            // [h], [Vd, h]
  at::Tensor target_ids;                  // int64 [Vd], absolute
  at::Tensor cos_sin;                     // fp32 [positions, d]

  // Takes canonical names (eagle3_ext/checkpoint/config.py) plus `embed_tokens.weight`, `lm_head.weight` and `cos_sin`.
  // ValueError for a missing tensor, or another shape or dtype than the sizes and fc.weight's neighbours call for.
  static DrafterWeights from_names(const DrafterSizes& sizes, const WeightsByName& named);
};

}  // namespace eagle3
