// The table of row primitives of one CPU level. CMake compiles this file once per level, with the level's name in
// EAGLE3_CPU_LEVEL (plain, avx2, avx512, avx512_bf16) and the matching -m flags.
#include "vector_kernels.h"

#include "vec.h"
#include "vec_attention.h"
#include "vec_linear.h"

namespace eagle3::cpu::EAGLE3_CPU_LEVEL {

template <class T>
static int64_t packed_bytes(int64_t k) {
  return padded(k) * (int64_t)sizeof(typename Dot<T>::X);
}

template <class T>
static void pack(const void* x, int64_t k, void* packed) {
  Dot<T>::pack((const T*)x, k, (typename Dot<T>::X*)packed);
}

template <class T>
static void add(const void* a, const void* b, void* out, int64_t n) {
  for_chunks(n, [&](int64_t i, auto at) {
    const Pair x = at.read((const T*)a + i), y = at.read((const T*)b + i);
    at.write((T*)out + i, {x.a + y.a, x.b + y.b});
  });
}

template <class T>
static float add_squares(const void* a, const void* b, void* sum, void* copy, int64_t n) {
  Pair squares{};
  for_chunks(n, [&](int64_t i, auto at) {
    const Pair x = at.read((const T*)a + i), y = at.read((const T*)b + i);
    const Pair z = round_to<T>({x.a + y.a, x.b + y.b});
    at.write((T*)sum + i, z);
    if (copy) at.write((T*)copy + i, z);
    squares.a = fma(z.a, z.a, squares.a);
    squares.b = fma(z.b, z.b, squares.b);
  });
  return reduce_add(squares.a + squares.b);
}

template <class T>
static float squares(const void* x, int64_t n) {
  Pair sum{};
  for_chunks(n, [&](int64_t i, auto at) {
    const Pair z = at.read((const T*)x + i);
    sum.a = fma(z.a, z.a, sum.a);
    sum.b = fma(z.b, z.b, sum.b);
  });
  return reduce_add(sum.a + sum.b);
}

template <class T>
static void scale_gain(const void* x, float scale, const void* gain, void* out, int64_t n) {
  for_chunks(n, [&](int64_t i, auto at) {
    const Pair z = at.read((const T*)x + i), g = at.read((const T*)gain + i);
    const Pair unit = round_to<T>({z.a * scale, z.b * scale});
    at.write((T*)out + i, {unit.a * g.a, unit.b * g.b});
  });
}

static inline F32 silu(F32 x) { return x / (1.f + exp(-x)); }

template <class T>
static void silu_mul(const void* gate, const void* up, void* out, int64_t n) {
  for_chunks(n, [&](int64_t i, auto at) {
    const Pair g = at.read((const T*)gate + i), u = at.read((const T*)up + i);
    const Pair s = round_to<T>({silu(g.a), silu(g.b)});
    at.write((T*)out + i, {s.a * u.a, s.b * u.b});
  });
}

template <class T>
static void align_floats(const float* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i / kChunk * kChunk + lane<T>(i % kChunk)] = in[i];
}

template <class T>
static void rotate(const void* x, const float* cos, const float* sin, void* out, int64_t half) {
  const T* in = (const T*)x;
  for_chunks(half, [&](int64_t i, auto at) {
    const Pair low = at.read(in + i), high = at.read(in + half + i), c = load(cos + i), s = load(sin + i);
    at.write((T*)out + i, {low.a * c.a - high.a * s.a, low.b * c.b - high.b * s.b});
    at.write((T*)out + half + i, {high.a * c.a + low.a * s.a, high.b * c.b + low.b * s.b});
  });
}

// Puts -inf after the first `count` elements of a chunk, where a partial read left zeros.
template <class T>
static Pair fill_rest(Pair v, int64_t count) {
  float lanes[kChunk];
  store(lanes, v);
  for (int64_t i = count; i < kChunk; ++i) lanes[lane<T>(i)] = -__builtin_inff();
  return load(lanes);
}

// The largest value, NaN counting as -inf.
template <class T>
static float max_value(const void* x, int64_t n) {
  F32 best = splat(-__builtin_inff());
  for_chunks(n, [&](int64_t i, auto at) {
    Pair v = at.read((const T*)x + i);
    if constexpr (requires { at.count; }) v = fill_rest<T>(v, at.count);
    best = max(v.a, max(v.b, best));
  });
  return reduce_max(best);
}

template <class T>
static float sum_exp(const void* x, float offset, int64_t n) {
  Pair sum{};
  for_chunks(n, [&](int64_t i, auto at) {
    Pair v = at.read((const T*)x + i);
    if constexpr (requires { at.count; }) v = fill_rest<T>(v, at.count);
    sum.a += v.a == v.a ? exp(v.a - offset) : F32{};
    sum.b += v.b == v.b ? exp(v.b - offset) : F32{};
  });
  return reduce_add(sum.a + sum.b);
}

// Writes around the caches: lines of a large output are not read before they are overwritten, and evict nothing.
static void stream_copy(void* out, const void* in, int64_t bytes) {
#if defined(__SSE2__)
  char* to = (char*)out;
  const char* from = (const char*)in;
  const int64_t head = -(intptr_t)to & 15;
  if (bytes < head + 64) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  __builtin_memcpy(to, from, head);
  int64_t i = head;
  for (; i + 64 <= bytes; i += 64)
    for (int j = 0; j < 64; j += 16) _mm_stream_si128((__m128i*)(to + i + j), load_bits<__m128i>(from + i + j));
  __builtin_memcpy(to + i, from + i, bytes - i);
  _mm_sfence();
#else
  __builtin_memcpy(out, in, bytes);
#endif
}

template <class T>
constexpr RowKernels kRowKernels = {
    packed_bytes<T>, pack<T>,         linear<T>, add<T>,       add_squares<T>, squares<T>,        scale_gain<T>,
    silu_mul<T>,     align_floats<T>, rotate<T>, max_value<T>, sum_exp<T>,     attention_scratch, attention<T>,
};

#define EAGLE3_QUOTED(level) #level
#define EAGLE3_NAME(level) EAGLE3_QUOTED(level)

const VectorKernels table = {
    EAGLE3_NAME(EAGLE3_CPU_LEVEL), {kRowKernels<float>, kRowKernels<BF16>, kRowKernels<F16>}, stream_copy};

}  // namespace eagle3::cpu::EAGLE3_CPU_LEVEL
