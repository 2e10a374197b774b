#include "cache.h"

#include <algorithm>

namespace eagle3 {

constexpr int64_t kFirstCapacity = 256;

KvCache::KvCache(const DrafterSizes& sizes, int64_t max_batch, int64_t max_length, at::TensorOptions options)
    : lengths(max_batch, 0),
      max_length_(max_length),
      capacity_(std::min(kFirstCapacity, max_length)),
      k_(at::empty({max_batch * capacity_, sizes.num_kv_heads, sizes.head_dim}, options)),
      v_(at::empty_like(k_)) {}

void KvCache::reserve(int64_t length) {
  if (length <= capacity_) return;
  int64_t capacity = capacity_;
  while (capacity < length) capacity *= 2;
  capacity = std::min(capacity, max_length_);
  k_ = relocated(k_, capacity);
  v_ = relocated(v_, capacity);
  capacity_ = capacity;
}

at::Tensor KvCache::relocated(const at::Tensor& old, int64_t capacity) const {
  const at::Tensor wider = at::empty({max_batch() * capacity, old.size(1), old.size(2)}, old.options());
  for (int64_t sequence = 0; sequence < max_batch(); ++sequence) {
    const int64_t rows = lengths[sequence];
    wider.narrow(0, sequence * capacity, rows).copy_(old.narrow(0, sequence * capacity_, rows));
  }
  return wider;
}

}  // namespace eagle3
