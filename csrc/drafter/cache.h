// Keys and values of every sequence and layer, flat: slot = sequence * capacity + place. Committed rows come first; a
// draft's rows follow them and are overwritten by the next extend. With latent attention k is [latent | rotated key], one
// head, and v the latent part of the same memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sizes.h"

namespace eagle3 {

class KvCache {
 public:
  // Room for `capacity` rows of each sequence.
  KvCache(const DrafterSizes& sizes, int64_t max_batch, int64_t capacity, at::TensorOptions options);

  // Makes room for `length` rows of every sequence by doubling, up to max_length; the first `kept` rows stay.
  void reserve(int64_t length, int64_t kept, int64_t max_length);

  int64_t capacity() const { return capacity_; }
  int64_t num_slots() const { return max_batch_ * capacity_; }
  const at::Tensor& k(int64_t layer) const { return k_[layer]; }  // [num_slots, nkv, d]
  const at::Tensor& v(int64_t layer) const { return v_.empty() ? k_[layer] : v_[layer]; }

 private:
  int64_t max_batch_, capacity_;
  std::vector<at::Tensor> k_, v_;
};

}  // namespace eagle3
