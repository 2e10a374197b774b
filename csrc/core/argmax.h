// The rule of the greedy choice, shared by the CPU and CUDA kernels: NaN counts as -inf, ties go to the lowest index, and
// -inf wins nothing.
#pragma once

#include <cstdint>

#include "device.cuh"

namespace eagle3 {

struct Candidate {
  float value;
  int64_t index;
};

EAGLE3_HOST_DEVICE float argmax_key(float value) { return value == value ? value : -__builtin_inff(); }

// Whether `a` wins over `b`. Values are keys already: never NaN.
EAGLE3_HOST_DEVICE bool beats(Candidate a, Candidate b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// Whether a row's best logit is a choice at all: a row of -inf and NaN, mixed or alone, has none.
EAGLE3_HOST_DEVICE bool is_winner(Candidate best) { return best.value > -__builtin_inff(); }

}  // namespace eagle3
