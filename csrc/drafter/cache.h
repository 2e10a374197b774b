// Keys and values of every sequence, flat: slot = sequence * capacity + place. Committed rows come first; a
// draft's rows follow them and are overwritten by the next extend.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "sizes.h"

namespace eagle3 {

class KvCache {
 public:
  KvCache(const DrafterSizes& sizes, int64_t max_batch, int64_t max_length, at::TensorOptions options);

  // Makes room for `length` rows of every sequence by doubling; committed rows are kept. Not past max_length.
  void reserve(int64_t length);

  int64_t slot(int64_t sequence, int64_t place) const { return sequence * capacity_ + place; }
  int64_t num_slots() const { return k_.size(0); }
  int64_t max_batch() const { return static_cast<int64_t>(lengths.size()); }
  int64_t max_length() const { return max_length_; }
  void* k() const { return k_.data_ptr(); }
  void* v() const { return v_.data_ptr(); }

  std::vector<int64_t> lengths;  // committed rows of each sequence

 private:
  at::Tensor relocated(const at::Tensor& old, int64_t capacity) const;

  int64_t max_length_, capacity_;
  at::Tensor k_, v_;  // [max_batch * capacity, nkv, d]
};

}  // namespace eagle3
