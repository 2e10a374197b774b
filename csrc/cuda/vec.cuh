// Rows of T in pieces of 16 bytes: one 128-bit access where address and width allow (kAligned), else element by
// element. The piece that a thread handles is the same either way, so that results do not depend on where a tensor
// lies.
#pragma once

#include <cstdint>

#include "half.cuh"

namespace eagle3::cuda {

template <class T>
constexpr int kVec = 16 / sizeof(T);

template <class T>
struct alignas(16) Vec {
  T lane[kVec<T>];
};

// How a 128-bit load is cached: kept for the next reader, or streamed past what others want to keep.
enum class Cached { kDefault, kOnce };

// Elements i .. i + kVec - 1 of a row of `size`; what lies past its end reads as zero.
template <class T, bool kAligned, Cached kCached = Cached::kDefault>
__device__ __forceinline__ Vec<T> load(const T* row, int64_t i, int64_t size) {
  Vec<T> v;
  if constexpr (kAligned) {
    const int4* piece = reinterpret_cast<const int4*>(row + i);
    *reinterpret_cast<int4*>(&v) = kCached == Cached::kOnce ? __ldcs(piece) : *piece;
  } else {
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) v.lane[e] = i + e < size ? row[i + e] : T(0.0f);
  }
  return v;
}

// Writes what of the piece lies inside the row.
template <class T, bool kAligned>
__device__ __forceinline__ void store(T* row, int64_t i, int64_t size, const Vec<T>& v) {
  if constexpr (kAligned) {
    // A plain assignment is taken apart into four 32-bit stores where the lanes were computed one by one.
    __stcg(reinterpret_cast<int4*>(row + i), *reinterpret_cast<const int4*>(&v));
  } else {
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e)
      if (i + e < size) row[i + e] = v.lane[e];
  }
}

template <class T>
__device__ __forceinline__ Vec<T> zeros() {
  Vec<T> v;
#pragma unroll
  for (int e = 0; e < kVec<T>; ++e) v.lane[e] = T(0.0f);
  return v;
}

}  // namespace eagle3::cuda
