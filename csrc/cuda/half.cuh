// The two 16-bit element types of the kernels: stored, and converted to and from float32, in which all arithmetic is.
//
// Layout and rounding (to nearest, ties to even) are those of torch's BFloat16 and Half and of CUDA's __nv_bfloat16 and
// __half. Their headers would be half of the time that most kernels take to compile.
#pragma once

#include <cstdint>

#include "../core/device.cuh"

namespace eagle3::cuda {

#if defined(EAGLE3_SIMT)

inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (value != value) return 0x7fff;  // the one NaN that the instruction gives
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_bfloat16(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
inline uint16_t to_float16(float value) { return simt::bits<uint16_t>(static_cast<_Float16>(value)); }
inline float from_float16(uint16_t bits) { return static_cast<float>(simt::bits<_Float16>(bits)); }

#else

__device__ __forceinline__ uint16_t to_bfloat16(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Not a shift: with one, ptxas keeps more registers alive.
__device__ __forceinline__ float from_bfloat16(uint16_t bits) {
  float value;
#if __CUDA_ARCH__ >= 900
  asm("cvt.f32.bf16 %0, %1;" : "=f"(value) : "h"(bits));
#else
  asm("mov.b32 %0, {0, %1};" : "=f"(value) : "h"(bits));
#endif
  return value;
}

__device__ __forceinline__ uint16_t to_float16(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ __forceinline__ float from_float16(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

#endif

struct BFloat16 {
  BFloat16() = default;
  __device__ __forceinline__ BFloat16(float value) : bits(to_bfloat16(value)) {}
  __device__ __forceinline__ operator float() const { return from_bfloat16(bits); }

  uint16_t bits;
};

struct Float16 {
  Float16() = default;
  __device__ __forceinline__ Float16(float value) : bits(to_float16(value)) {}
  __device__ __forceinline__ operator float() const { return from_float16(bits); }

  uint16_t bits;
};

}  // namespace eagle3::cuda
