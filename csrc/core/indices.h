// Reading an index of either width. Apart from kernels.h, because that also reaches the sources compiled once per CPU level,
// where an inline function must not be instantiated (vector_kernels.h).
#pragma once

#include "../kernels.h"
#include "device.cuh"

namespace eagle3 {

EAGLE3_HOST_DEVICE int64_t index_at(const Indices& indices, int64_t i) {
  return indices.is_int32 ? static_cast<const int32_t*>(indices.data)[i] : static_cast<const int64_t*>(indices.data)[i];
}

// Whether a row of draft_input is padding. Tokens that stand beside embeddings of their own are looked up nowhere, so only
// -1 says so there; a token outside the table has been refused by the op, or on a GPU must at least not be looked up.
EAGLE3_HOST_DEVICE bool is_padding_token(int64_t token, bool is_looked_up, int64_t vocab_size) {
  return token == -1 || (is_looked_up && (token < 0 || token >= vocab_size));
}

}  // namespace eagle3
