// The host side of a launch: template arguments from dtypes and addresses, grids and blocks from sizes.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "../kernels.h"
#include "vec.cuh"

namespace eagle3::cuda {

// Calls launch(T{}) with the element type.
template <class Launch>
int for_type(DType dtype, const Launch& launch) {
  switch (dtype) {
    case DType::kFloat32: return launch(float{});
    case DType::kBFloat16: return launch(BFloat16{});
    case DType::kFloat16: return launch(Float16{});
  }
  return cudaErrorInvalidValue;
}

// Whether rows can be cut into aligned pieces: every base address, and every row stride and width (in elements of T),
// is a whole number of pieces. The null of an absent tensor is.
inline bool are_aligned(const void* const* bases, int64_t count) {
  bool aligned = true;
  for (int64_t i = 0; i < count; ++i) aligned &= reinterpret_cast<uintptr_t>(bases[i]) % 16 == 0;
  return aligned;
}

template <class T>
bool are_whole_pieces(const int64_t* elements, int64_t count) {
  bool whole = true;
  for (int64_t i = 0; i < count; ++i) whole &= elements[i] % kVec<T> == 0;
  return whole;
}

// Calls launch(std::true_type) for rows that can be cut, else launch(std::false_type).
template <class T, class Launch>
int for_layout(std::initializer_list<const void*> bases, std::initializer_list<int64_t> elements,
               const Launch& launch) {
  const bool aligned = are_aligned(bases.begin(), static_cast<int64_t>(bases.size())) &&
                       are_whole_pieces<T>(elements.begin(), static_cast<int64_t>(elements.size()));
  return aligned ? launch(std::true_type{}) : launch(std::false_type{});
}

// A grid dimension. What exceeds the largest becomes 0, which the launch refuses, and never wraps around.
inline unsigned grid_size(int64_t blocks) { return blocks <= 0x7fffffff ? static_cast<unsigned>(blocks) : 0; }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Threads of a block that shares a row: whole warps, with kPieces pieces for each thread if the row has as many.
template <class T, int kPieces>
unsigned threads_for_row(int64_t size, int64_t most) {
  const int64_t threads = ceil_div(ceil_div(size, kVec<T>), kPieces * 32) * 32;
  return static_cast<unsigned>(threads < 32 ? 32 : threads > most ? most : threads);
}

}  // namespace eagle3::cuda
