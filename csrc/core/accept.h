// Rules of acceptance, shared by the CPU and CUDA kernels.
#pragma once

#include <cstdint>

#include "device.cuh"

namespace eagle3 {

// Leading draft tokens that the target confirms, of `count`. A draft token of -1 is padding and never matches, even a
// target token of -1.
template <class Draft, class Target>
EAGLE3_HOST_DEVICE int64_t accepted_prefix(const Draft* draft, const Target* target, int64_t count) {
  int64_t accepted = 0;
  while (accepted < count && draft[accepted] != -1 && static_cast<int64_t>(draft[accepted]) == target[accepted]) {
    ++accepted;
  }
  return accepted;
}

// Accept lengths outside [0, width] cannot come from verification; clamped, they can at least not leave their block.
EAGLE3_HOST_DEVICE int64_t clamp_accept_length(int64_t length, int64_t width) {
  return length < 0 ? 0 : length > width ? width : length;
}

// The row of a [batch * width] buffer that output i of sequence b reads in the block-front layout, -1 past the accepted
// ones.
EAGLE3_HOST_DEVICE int64_t block_front_row(int64_t b, int64_t i, int64_t accept_length, int64_t width) {
  return i < accept_length ? b * width + i : -1;
}

}  // namespace eagle3
