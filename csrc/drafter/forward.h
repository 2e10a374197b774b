// The drafter's forward over some rows: fusion, the decoder layer, the head. Knows nothing of rounds; `drafter.h` does.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "../kernels.h"
#include "cache.h"
#include "sizes.h"
#include "weights.h"

namespace eagle3 {

// Rows of one layer call, grouped by sequence: group g owns rows row_offsets[g] .. row_offsets[g+1].
struct Rows {
  std::vector<int64_t> tokens, positions, slots;
  std::vector<int64_t> row_offsets, cache_starts, cache_lengths;
  at::Tensor token_embeddings;  // [n, h], replaces the lookup where defined

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  // Closes a group of the rows added since the last one.
  void close_group(int64_t cache_start, int64_t cache_length);
};

DType dtype_of(const at::Tensor& tensor);  // ValueError for anything but float32, bfloat16, float16

class Forward {
 public:
  // Workspace for `max_rows` rows is allocated here and nowhere else.
  Forward(const DrafterSizes& sizes, DrafterWeights weights, int64_t max_rows);

  // u = fusion(features): [n, K*H] -> [n, h]
  void fuse(const at::Tensor& features);
  // u = the recurrent hidden of an earlier step, [n, h]
  void feed(const at::Tensor& recurrent);
  // s and y of `rows`, from u; appends the rows' keys and values to the cache.
  void layer(const Rows& rows, KvCache& cache);
  // logits [n, Vd] of y [n, h]; valid until the next call.
  at::Tensor head(const at::Tensor& y);

  // Results of the last layer() call, views of n rows that live until the next fuse() or feed().
  const at::Tensor& s() const { return s_; }
  const at::Tensor& y() const { return y_; }
  const DrafterWeights& weights() const { return weights_; }
  int64_t max_rows() const { return u_.size(0); }
  at::TensorOptions options() const { return weights_.embedding.options(); }

 private:
  at::Tensor attention(const Rows& rows, KvCache& cache);
  void normalise_features(const at::Tensor& features, const at::Tensor& out) const;
  void draft_input(const Rows& rows, const at::Tensor& u, const at::Tensor& x) const;
  void add_rms_norm(const at::Tensor& hidden, const at::Tensor& residual, const at::Tensor& weight) const;

  DrafterSizes sizes_;
  DrafterWeights weights_;
  at::Tensor normed_;                  // [max_rows, K*H], with a feature norm only
  at::Tensor u_, x_, qkv_, attended_;  // [max_rows, h | 2h | (nq + 2*nkv) * d | nq * d]
  at::Tensor hidden_, gate_up_, act_;  // [max_rows, h | 2i | i]
  at::Tensor logits_;                  // [<= max_rows, Vd], grown by head()
  at::Tensor s_, y_;
};

}  // namespace eagle3
