// Which cache rows a query row attends to, shared by the CPU and CUDA kernels.
#pragma once

#include <cstdint>

#include "device.cuh"

namespace eagle3 {

// A run of cache rows; a length of 0 or less: none.
struct KeySpan {
  int64_t start, length;
};

// Of query row `row` in a sequence that owns query rows begin .. end-1 and cache rows cache_start .. + cache_length,
// its own rows included and last: everything up to the row itself, or the last `window` rows of that; window 0: no
// limit.
EAGLE3_HOST_DEVICE KeySpan visible_keys(int64_t row, int64_t begin, int64_t end, int64_t cache_start,
                                        int64_t cache_length, int64_t window) {
  const int64_t length = cache_length - (end - begin) + (row - begin) + 1;
  const int64_t passed = window > 0 && length > window ? length - window : 0;
  return {cache_start + passed, length - passed};
}

}  // namespace eagle3
