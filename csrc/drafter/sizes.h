// The numbers a drafter is made of. `eagle3_ext/checkpoint/config.py` explains each and reads it from a file.
#pragma once

#include <cstdint>
#include <vector>

namespace eagle3 {

enum class FeatureNorm { kNone, kWhole, kPerState };

struct LayerSizes {
  bool joins_embedding;  // reads [RMS(e) | RMS(hidden)], 2h wide, instead of RMS(hidden)
  int64_t window;        // keys a row sees; 0: all
};

// Multi-head latent attention; kv_lora_rank 0: the drafter has grouped-query attention.
struct LatentSizes {
  int64_t q_lora_rank;  // 0: one q_proj makes the queries
  int64_t kv_lora_rank, nope_head_dim, rope_head_dim, v_head_dim;

  int64_t cache_width() const { return kv_lora_rank + rope_head_dim; }
};

struct DrafterSizes {
  int64_t hidden_size;         // h
  int64_t target_hidden_size;  // H
  int64_t num_states;          // K
  int64_t intermediate_size;
  int64_t num_q_heads, num_kv_heads, head_dim;
  int64_t vocab_size, draft_vocab_size;  // V, Vd
  double eps, logit_scale, attention_scale;
  bool fused;  // false: the features are the drafter's input (no fc)
  FeatureNorm feature_norm;
  bool fc_bias, has_hidden_norm, has_final_norm;
  bool norm_before_residual, norm_output;
  bool qk_norm, qkv_bias, o_bias, mlp_bias;
  std::vector<LayerSizes> layers;
  LatentSizes latent;

  int64_t features_width() const { return num_states * target_hidden_size; }
  bool is_latent() const { return latent.kv_lora_rank > 0; }
  int64_t q_width() const { return num_q_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  int64_t attended_width() const { return num_q_heads * (is_latent() ? latent.v_head_dim : head_dim); }
  // What of a head is rotated: with grouped-query attention all of it, by angles of 0 where it should pass.
  int64_t rotary_dim() const { return is_latent() ? latent.rope_head_dim : head_dim; }
};

}  // namespace eagle3
