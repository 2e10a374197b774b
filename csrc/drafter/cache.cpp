#include "cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

namespace eagle3 {

KvCache::KvCache(const DrafterSizes& sizes, int64_t max_batch, int64_t capacity, at::TensorOptions options)
    : max_batch_(max_batch), capacity_(capacity) {
  for (size_t layer = 0; layer < sizes.layers.size(); ++layer) {
    if (sizes.is_latent()) {
      k_.push_back(at::empty({num_slots(), 1, sizes.latent.cache_width()}, options));
      continue;
    }
    k_.push_back(at::empty({num_slots(), sizes.num_kv_heads, sizes.head_dim}, options));
    v_.push_back(at::empty_like(k_.back()));
  }
}

void KvCache::reserve(int64_t length, int64_t kept, int64_t max_length) {
  if (length <= capacity_) return;
  int64_t wider = capacity_;
  while (wider < length) wider *= 2;
  wider = std::min(wider, max_length);
  for (std::vector<at::Tensor>* parts : {&k_, &v_}) {
    for (at::Tensor& part : *parts) {
      const at::Tensor old = part.view({max_batch_, capacity_, part.size(1), part.size(2)});
      at::Tensor grown = at::empty({max_batch_, wider, part.size(1), part.size(2)}, part.options());
      grown.narrow(1, 0, kept).copy_(old.narrow(1, 0, kept));
      part = grown.view({max_batch_ * wider, part.size(1), part.size(2)});
    }
  }
  capacity_ = wider;
}

}  // namespace eagle3
