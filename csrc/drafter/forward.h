// The drafter's forward over some rows: fusion, the decoder layers, the head. Knows nothing of rounds; `drafter.h` does.
#pragma once

#include <ATen/core/Tensor.h>

#include "../kernels.h"
#include "cache.h"
#include "sizes.h"
#include "weights.h"

namespace eagle3 {

// Rows of one forward, grouped by sequence: sequence b owns rows row_offsets[b] .. row_offsets[b+1].
struct Rows {
  int64_t count, batch;
  Indices tokens, positions, slots;                  // [count]
  Indices row_offsets, cache_starts, cache_lengths;  // [batch + 1], [batch], [batch]
  at::Tensor token_embeddings;                       // [count, h], replaces the lookup where defined
};

constexpr const char* kDrafter = "the drafter";  // who launches, in a launch's error

Indices indices(const at::Tensor& contiguous);  // int32 or int64, and it must outlive the result
DType dtype_of(const at::Tensor& tensor);  // ValueError for anything but float32, bfloat16, float16

class Forward {
 public:
  // Allocates the workspace for `max_rows` rows, `max_batch` of them through the head. Later calls allocate no more than
  // ATen's matrix products do.
  Forward(const DrafterSizes& sizes, DrafterWeights weights, int64_t max_rows, int64_t max_batch);

  // u = fusion(features): [n, K*H] -> [n, h]
  void fuse(const at::Tensor& features);
  // u = the recurrent hidden of an earlier step, [n, h]
  void feed(const at::Tensor& recurrent);
  // s and y of `rows`, from u; appends the rows' keys and values to the cache.
  void layers(const Rows& rows, const KvCache& cache);
  // logits [n, Vd] of y [n, h]; valid until the next call.
  at::Tensor head(const at::Tensor& y) const;

  // Results of the last layers() call, views of n rows that live until the next fuse() or feed().
  const at::Tensor& s() const { return s_; }
  const at::Tensor& y() const { return y_; }
  const DrafterWeights& weights() const { return weights_; }
  int64_t max_rows() const { return u_.size(0); }
  at::TensorOptions options() const { return weights_.embedding.options(); }

 private:
  void rms_norm(const at::Tensor& in, const std::vector<at::Tensor>& gains, const at::Tensor& out) const;
  at::Tensor layer_input(const LayerWeights& layer, bool joins_embedding, const Rows& rows,
                         const at::Tensor& hidden) const;
  at::Tensor attention(int64_t index, const at::Tensor& x, const Rows& rows, const KvCache& cache) const;
  at::Tensor latent_attention(int64_t index, const at::Tensor& x, const Rows& rows, const KvCache& cache) const;
  void attend(int64_t index, const at::Tensor& q, int64_t value_dim, const Rows& rows, const KvCache& cache,
              const at::Tensor& out) const;
  void mlp(const LayerWeights& layer, const at::Tensor& hidden) const;
  void add_rms_norm(const at::Tensor& hidden, const at::Tensor& residual, const at::Tensor& weight) const;

  DrafterSizes sizes_;
  DrafterWeights weights_;
  at::Tensor normed_;                  // [max_rows, K*H], with a feature norm only
  at::Tensor u_, x_, qkv_, attended_;  // [max_rows, h | 2h | (nq + 2*nkv) * d | nq * d]; qkv_ not with latent attention
  at::Tensor hidden_, gate_up_, act_;  // [max_rows, h | 2i | i]
  at::Tensor logits_;                  // [max_batch, Vd]
  at::Tensor every_row_;               // int64 [max_rows], 0 ..
  // Latent attention: [max_rows, first's rows], [max_rows, q_lora], [max_rows, nq * d], [max_rows, nq, kv_lora + rope],
  // [max_rows, nq, kv_lora].
  at::Tensor joint_, q_latent_, q_, absorbed_, attended_latent_;
  at::Tensor attention_workspace_;
  at::Tensor s_, y_;
};

}  // namespace eagle3
