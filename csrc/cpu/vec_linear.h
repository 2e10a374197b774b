// The linear block of one CPU level: dot products of weight rows with a few x rows.
//
// Row-invariance: output (m, n) is one vector accumulator that walks k in chunks from 0 up and is reduced once,
// whatever the register block, tile or number of rows. Tiling only parks the accumulator in memory between tiles.
#pragma once

#include "vec.h"
#include "vector_kernels.h"

namespace eagle3::cpu::EAGLE3_CPU_LEVEL {

// x is widened to fp32 once per call; weights are widened in registers, once per register block.
template <class T>
struct Dot {
  using X = float;
  static Pair full(const T* w) { return load(w); }
  static Pair partial(const T* w, int64_t count) { return Partial{count}.read(w); }
  static Pair full_x(const X* x) { return load(x); }
  static F32 step(F32 sum, Pair w, Pair x) { return fma(w.b, x.b, fma(w.a, x.a, sum)); }
  static void pack(const T* x, int64_t k, X* packed) {
    for_chunks(k, [&](int64_t i, auto at) { store(packed + i, at.read(x + i)); });
  }
};

#if defined(__AVX512BF16__)
// The CPU multiplies bf16 pairs itself: x stays bf16.
template <>
struct Dot<BF16> {
  using X = BF16;
  static __m512bh full(const BF16* w) { return (__m512bh)_mm512_loadu_si512(w); }
  static __m512bh partial(const BF16* w, int64_t count) {
    BF16 padded[kChunk] = {};
    __builtin_memcpy(padded, w, count * sizeof(BF16));
    return full(padded);
  }
  static __m512bh full_x(const X* x) { return full(x); }
  static F32 step(F32 sum, __m512bh w, __m512bh x) { return _mm512_dpbf16_ps(sum, w, x); }
  static void pack(const BF16* x, int64_t k, X* packed) {
    __builtin_memset(packed + k, 0, (padded(k) - k) * sizeof(X));
    __builtin_memcpy(packed, x, k * sizeof(X));
  }
};
#endif

// How many bytes ahead of its use a weight is fetched: along a long row, else from the same place in the next register
// block, because 2 KB ahead of a short row lies in rows that the block reads anyway.
template <class T, int R>
static int64_t prefetch_distance(int64_t k) {
  const int64_t row_bytes = k * (int64_t)sizeof(T);
  return row_bytes <= 4096 ? R * row_bytes : 2048;
}

// k per tile with several x rows: the x tile stays in L1 while the block's weight rows pass by.
constexpr int64_t kTile = 1024;

// Continues acc[r * kLinearBlockTokens + m] over k in [begin, end).
template <class T, int R, int M>
static void accumulate(const T* w, const typename Dot<T>::X* x, int64_t k, int64_t x_stride, int64_t begin, int64_t end,
                       F32* acc) {
  F32 sum[R][M];
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) sum[r][m] = acc[r * kLinearBlockTokens + m];
  const auto add = [&](int64_t i, auto read) {
    decltype(Dot<T>::full(w)) chunk[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) chunk[r] = read(w + r * k + i);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const auto shared = Dot<T>::full_x(x + m * x_stride + i);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][m] = Dot<T>::step(sum[r][m], chunk[r], shared);
    }
  };
  const int64_t ahead = prefetch_distance<T, R>(k);
  int64_t i = begin;
  for (; i + kChunk <= end; i += kChunk) {
    add(i, [&](const T* row) {
      __builtin_prefetch((const char*)row + ahead);
      return Dot<T>::full(row);
    });
  }
  if (i < end) add(i, [&](const T* row) { return Dot<T>::partial(row, end - i); });
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) acc[r * kLinearBlockTokens + m] = sum[r][m];
}

// Weight rows per register block: R * M accumulators, the weight chunk and x must fit the registers.
template <int M>
constexpr int kRegisterRows = kLanes == 16 || M <= 2 ? 4 : 2;

template <class T, int M>
static void accumulate_rows(const LinearBlock& p, const typename Dot<T>::X* x, int64_t x_stride, int64_t begin,
                            int64_t end, F32* acc) {
  constexpr int R = kRegisterRows<M>;
  const T* w = (const T*)p.weight;
  int64_t row = 0;
  for (; row + R <= p.n; row += R)
    accumulate<T, R, M>(w + row * p.k, x, p.k, x_stride, begin, end, acc + row * kLinearBlockTokens);
  for (; row < p.n; ++row)
    accumulate<T, 1, M>(w + row * p.k, x, p.k, x_stride, begin, end, acc + row * kLinearBlockTokens);
}

// Sums of one k tile for all x rows of the block, four at a time.
template <class T>
static void accumulate_tile(const LinearBlock& p, int64_t begin, int64_t end, F32* acc) {
  const auto* x = (const typename Dot<T>::X*)p.packed_x;
  const int64_t x_stride = padded(p.k);
  for (int64_t m = 0; m < p.m; m += 4) {
    const auto* rows = x + m * x_stride;
    switch (p.m - m) {
      case 1: accumulate_rows<T, 1>(p, rows, x_stride, begin, end, acc + m); break;
      case 2: accumulate_rows<T, 2>(p, rows, x_stride, begin, end, acc + m); break;
      case 3: accumulate_rows<T, 3>(p, rows, x_stride, begin, end, acc + m); break;
      default: accumulate_rows<T, 4>(p, rows, x_stride, begin, end, acc + m);
    }
  }
}

// Reduces the accumulators of one x row, adds the bias, rounds and writes n outputs.
template <class T>
static void finish_row(const F32* acc, const T* bias, T* y, int64_t n) {
  for_chunks(n, [&](int64_t i, auto at) {
    F32 sums[kChunk] = {};  // as lanes of a Pair
    for (int64_t row = 0; row < kChunk && i + row < n; ++row)
      sums[lane<T>(row)] = acc[(i + row) * kLinearBlockTokens];
    const Pair offset = bias ? at.read(bias + i) : Pair{};
    at.write(y + i, {reduce_add_each(sums) + offset.a, reduce_add_each(sums + kLanes) + offset.b});
  });
}

template <class T>
static void linear(const LinearBlock& p) {
  F32 acc[kLinearBlockRows * kLinearBlockTokens];
  for (int64_t row = 0; row < p.n; ++row)
    for (int64_t m = 0; m < p.m; ++m) acc[row * kLinearBlockTokens + m] = F32{};
  const int64_t tile = p.m == 1 ? p.k : kTile;  // one row needs no reuse: stream its weights straight through
  for (int64_t begin = 0; begin < p.k; begin += tile)
    accumulate_tile<T>(p, begin, begin + tile < p.k ? begin + tile : p.k, acc);
  for (int64_t m = 0; m < p.m; ++m) finish_row(acc + m, (const T*)p.bias, (T*)p.y + m * p.y_stride, p.n);
}

}  // namespace eagle3::cpu::EAGLE3_CPU_LEVEL
