// SIMD vectors of one CPU level, over GCC/Clang vector extensions; intrinsics only where the extensions have no word.
//
// Included by vector_kernels.cpp alone, which is compiled once per level. Everything lives in the level's own namespace
// and nothing of std:: or c10:: is instantiated: an inline function compiled with AVX-512 flags under a shared name
// could be the copy the linker keeps, and would crash an older CPU.
#pragma once

#include <cstdint>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace eagle3::cpu::EAGLE3_CPU_LEVEL {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;  // SSE2 on x86-64, NEON on ARM
#endif
constexpr int kChunk = 2 * kLanes;  // elements one Pair holds

typedef float F32 __attribute__((vector_size(4 * kLanes)));
typedef int32_t I32 __attribute__((vector_size(4 * kLanes)));
typedef uint32_t U32 __attribute__((vector_size(4 * kLanes)));

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// One chunk of a row in fp32. Which element sits in which lane depends on the type alone (bf16: even elements in `a`,
// odd ones in `b`, because splitting 32-bit words costs one shift and one mask), so pairs of one type always line up.
struct Pair {
  F32 a, b;
};

template <class V, class P>
static inline V load_bits(const P* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class P, class V>
static inline void store_bits(P* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

static inline F32 splat(float x) { return F32{} + x; }

static inline F32 fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// The larger of each lane; `b` where `a` is NaN.
static inline F32 max(F32 a, F32 b) { return a > b ? a : b; }

static inline float reduce_add(F32 v) {
  float lane[kLanes];
  store_bits(lane, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}

// Lane j of the result adds two lanes of x (j in the lower half) or of y: with W = kLanes/2, kLanes/4, ..., 1 in turn,
// neighbours folded into one each time, every vector becomes one lane, its lanes added in the order of reduce_add above.
template <int W, int... J>
static inline F32 fold(F32 x, F32 y, std::integer_sequence<int, J...>) {
  constexpr int kHalf = kLanes / 2;
#if defined(__clang__)
#define EAGLE3_SHUFFLE(...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define EAGLE3_SHUFFLE(...) __builtin_shuffle(x, y, I32{__VA_ARGS__})
#endif
  return EAGLE3_SHUFFLE((J / kHalf * kLanes + J % kHalf / W * 2 * W + J % W)...) +
         EAGLE3_SHUFFLE((J / kHalf * kLanes + J % kHalf / W * 2 * W + J % W + W)...);
#undef EAGLE3_SHUFFLE
}

// Lane i: reduce_add(v[i]). Leaves v undefined.
template <int W = kLanes / 2>
static inline F32 reduce_add_each(F32* v) {
  for (int i = 0; i < W; ++i) v[i] = fold<W>(v[2 * i], v[2 * i + 1], std::make_integer_sequence<int, kLanes>());
  if constexpr (W > 1)
    return reduce_add_each<W / 2>(v);
  else
    return v[0];
}

static inline float reduce_max(F32 v) {
  float lane[kLanes];
  store_bits(lane, v);
  for (int i = 1; i < kLanes; ++i) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
  return lane[0];
}

// e^x = 2^n e^r with |r| <= ln(2)/2; about 1 ulp, gradual underflow, inf and NaN as in libm.
static inline F32 exp(F32 x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f, kRound = 12582912.f;
  const F32 lowest = splat(-104.f), highest = splat(89.f);
  x = x < lowest ? lowest : x;
  x = x > highest ? highest : x;
  const F32 shifted = fma(x, splat(kLog2e), splat(kRound));  // the integer n is now in the low mantissa bits
  const F32 n = shifted - kRound;
  const F32 r = fma(n, splat(-kLn2Low), fma(n, splat(-kLn2High), x));
  constexpr float kTaylor[] = {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1.f, 1.f};
  F32 p = splat(1.f / 5040);
  for (float coefficient : kTaylor) p = fma(p, r, splat(coefficient));
  // 2^n in two factors: n = 128 and n < -126 have no single normal factor.
  const I32 exponent = (I32)shifted - (I32)splat(kRound);
  const I32 half = exponent >> 1;
  return p * (F32)((half + 127) << 23) * (F32)((exponent - half + 127) << 23);
}

// --- float: natural order ---

static inline Pair load(const float* p) { return {load_bits<F32>(p), load_bits<F32>(p + kLanes)}; }

static inline void store(float* p, Pair v) {
  store_bits(p, v.a);
  store_bits(p + kLanes, v.b);
}

// --- bf16: round to nearest even, NaN stays NaN ---

static inline U32 bf16_bits_high(F32 x) {
  const U32 bits = (U32)x;
  const U32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return x == x ? rounded : U32{} + 0x7fc00000u;
}

static inline Pair load(const BF16* p) {
  const U32 words = load_bits<U32>(p);
  return {(F32)(words << 16), (F32)(words & 0xffff0000u)};
}

static inline void store(BF16* p, Pair v) { store_bits(p, (bf16_bits_high(v.a) >> 16) | bf16_bits_high(v.b)); }

// --- fp16: natural order; F16C where the level has it ---

#if defined(__AVX512F__)
static inline F32 widen(const F16* p) { return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)p)); }
static inline void narrow(F16* p, F32 x) { _mm256_storeu_si256((__m256i*)p, _mm512_maskz_cvtps_ph(0xffff, x, 0)); }
#elif defined(__AVX2__)
static inline F32 widen(const F16* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
static inline void narrow(F16* p, F32 x) { _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x, 0)); }
#else
static inline F32 widen(const F16* p) {
  U32 bits;
  for (int i = 0; i < kLanes; ++i) bits[i] = p[i].bits;
  const U32 magnitude = bits & 0x7fffu;
  // Multiplying by 2^112 moves the exponent bias from 15 to 127 and normalises subnormals on the way.
  const U32 finite = (U32)((F32)(magnitude << 13) * 0x1p112f);
  const U32 special = magnitude >= 0x7c00u ? U32{} + 0x7f800000u : U32{};
  return (F32)(finite | special | ((bits & 0x8000u) << 16));
}

static inline void narrow(F16* p, F32 x) {
  const U32 bits = (U32)x, magnitude = bits & 0x7fffffffu;
  // Rounding up carries into the exponent, which is right: 65520 becomes inf.
  const U32 normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14, adding 0.5 lets the FPU round at the last subnormal bit.
  const U32 subnormal = (U32)((F32)magnitude + 0.5f) - (126u << 23);
  U32 half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= (143u << 23) ? U32{} + 0x7c00u : half;
  half = x == x ? half : U32{} + 0x7e00u;
  half |= (bits >> 16) & 0x8000u;
  for (int i = 0; i < kLanes; ++i) p[i].bits = (uint16_t)half[i];
}
#endif

static inline Pair load(const F16* p) { return {widen(p), widen(p + kLanes)}; }

static inline void store(F16* p, Pair v) {
  narrow(p, v.a);
  narrow(p + kLanes, v.b);
}

// --- rounding in registers ---

static inline Pair rounded(const float*, Pair v) { return v; }
static inline Pair rounded(const BF16*, Pair v) { return {(F32)bf16_bits_high(v.a), (F32)bf16_bits_high(v.b)}; }
static inline Pair rounded(const F16*, Pair v) {
  F16 half[kChunk];
  store(half, v);
  return load(half);
}

// v as it would read back from a T in memory.
template <class T>
static inline Pair round_to(Pair v) {
  return rounded((const T*)nullptr, v);
}

// The lane that element i of a chunk of T occupies when the chunk is stored as fp32.
template <class T>
constexpr int64_t lane(int64_t i) {
  return i;
}
template <>
constexpr int64_t lane<BF16>(int64_t i) {
  return i / 2 + (i % 2) * kLanes;
}

// --- whole rows ---

// How a row is read and written in full chunks ...
struct Full {
  template <class T>
  Pair read(const T* p) const {
    return load(p);
  }
  template <class T>
  void write(T* p, Pair v) const {
    store(p, v);
  }
};

// ... and in its last, partial chunk: missing elements read as zero and are not written.
struct Partial {
  int64_t count;
  template <class T>
  Pair read(const T* p) const {
    T padded[kChunk] = {};
    __builtin_memcpy(padded, p, count * sizeof(T));
    return load(padded);
  }
  template <class T>
  void write(T* p, Pair v) const {
    T padded[kChunk];
    store(padded, v);
    __builtin_memcpy(p, padded, count * sizeof(T));
  }
};

// Calls body(i, access) for the chunks of a row of n elements, the last one possibly partial.
template <class Body>
static inline void for_chunks(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) body(i, Full{});
  if (i < n) body(i, Partial{n - i});
}

static inline int64_t padded(int64_t n) { return (n + kChunk - 1) / kChunk * kChunk; }

}  // namespace eagle3::cpu::EAGLE3_CPU_LEVEL
