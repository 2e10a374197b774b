// How CPU ops walk over rows: addresses from element strides, indices of either width, threads only where they pay.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>

#include "../core/indices.h"
#include "dispatch.h"

namespace eagle3::cpu {

// Below this many elements a thread's start costs more than its share of the work.
constexpr int64_t kGrainElements = 65536;

// Calls body(row) for rows 0 .. rows-1; `work` is the number of elements a row touches.
template <class Body>
void for_rows(int64_t rows, int64_t work, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, work));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

// base + elements, for an untyped array of `dtype`.
inline const void* advance(const void* base, int64_t elements, DType dtype) {
  return static_cast<const char*>(base) + elements * element_size(dtype);
}

inline void* advance(void* base, int64_t elements, DType dtype) {
  return static_cast<char*>(base) + elements * element_size(dtype);
}

}  // namespace eagle3::cpu
