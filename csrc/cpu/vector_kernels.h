// The row primitives that exist once per CPU level, behind a table of function pointers chosen by dispatch.h.
//
// Rows are contiguous; n counts elements. Every primitive's result depends on its own row alone, so an op may cut rows
// among threads as it likes.
#pragma once

#include "../kernels.h"

namespace eagle3::cpu {

// Sizes of one linear block: weight rows and x rows.
constexpr int kLinearBlockRows = 16;
constexpr int kLinearBlockTokens = 32;

// y[0:m, 0:n] = round(x W^T + bias) for at most kLinearBlockTokens rows of x and kLinearBlockRows rows of W.
struct LinearBlock {
  const void* packed_x;  // [m] rows of packed_bytes(k), written by pack
  const void* weight;    // [n, k]
  const void* bias;      // [n] or null
  void* y;               // [m, n], row stride below
  int64_t m, n, k, y_stride;
};

constexpr int64_t kAnglePadding = 32;  // the widest level's chunk

// One query row against the keys and values of one kv head, for `heads` query heads that share it.
struct AttentionRow {
  const void* q;        // [heads, head_dim] contiguous
  const void* k_cache;  // row t at t * k_stride
  const void* v_cache;
  void* out;  // [heads, value_dim] contiguous
  int64_t heads, head_dim, value_dim, length, k_stride, v_stride;
  float scale;
  float* scratch;  // attention_scratch(heads, head_dim, value_dim) floats
};

// The primitives for one element type.
struct RowKernels {
  int64_t (*packed_bytes)(int64_t k);
  void (*pack)(const void* x, int64_t k, void* packed);  // x as the level's dot product wants to read it
  void (*linear)(const LinearBlock&);

  // out = round(a + b)
  void (*add)(const void* a, const void* b, void* out, int64_t n);
  // sum = round(a + b), also into copy unless null; returns the squared norm of the rounded sum. sum may be a or b.
  float (*add_squares)(const void* a, const void* b, void* sum, void* copy, int64_t n);
  float (*squares)(const void* x, int64_t n);
  // out = round(round(x * scale) * gain)
  void (*scale_gain)(const void* x, float scale, const void* gain, void* out, int64_t n);
  // out = round(round(silu(gate)) * up)
  void (*silu_mul)(const void* gate, const void* up, void* out, int64_t n);
  // out = in, reordered as `rotate` reads the angles of this type; out holds n rounded up to kAnglePadding floats.
  void (*align_floats)(const float* in, float* out, int64_t n);
  // out = x rotated by the aligned angles cos, sin [half]: pairs (i, i + half) of 2 * half elements. out may be x.
  void (*rotate)(const void* x, const float* cos, const float* sin, void* out, int64_t half);

  float (*max)(const void* x, int64_t n);                    // NaN counts as -inf
  float (*sum_exp)(const void* x, float offset, int64_t n);  // sum of exp(x - offset), NaN left out

  int64_t (*attention_scratch)(int64_t heads, int64_t head_dim, int64_t value_dim);
  void (*attention)(const AttentionRow&);
};

struct VectorKernels {
  const char* name;
  RowKernels by_dtype[3];                                         // indexed by DType
  void (*stream_copy)(void* out, const void* in, int64_t bytes);  // past the caches: for outputs larger than they are
};

#define EAGLE3_DECLARE_LEVEL(level) \
  namespace level {                 \
  extern const VectorKernels table; \
  }
EAGLE3_DECLARE_LEVEL(plain)
EAGLE3_DECLARE_LEVEL(avx2)
EAGLE3_DECLARE_LEVEL(avx512)
EAGLE3_DECLARE_LEVEL(avx512_bf16)
#undef EAGLE3_DECLARE_LEVEL

}  // namespace eagle3::cpu
