// Flash decoding: the keys of a query row are cut into parts, a block for each, and a second kernel joins the parts.
//
// How a row's keys are cut, and who adds what in which order, depends on how many there are alone: a row's result is
// the same bits whatever else is in the call. Query heads that share a kv head share its loads.
#include <cfloat>

#include "../core/indices.h"
#include "../core/visible_keys.h"
#include "block.cuh"
#include "dispatch.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPartKeys = 64;               // parts hold a multiple of this
constexpr int64_t kLaunchFloats = 8 << 20;  // of workspace per launch: bounds its query rows
constexpr float kLowest = -FLT_MAX;         // where maxima start: unlike -inf it can be subtracted from itself

// What a block holds in registers.
template <int heads, int key_dims, int value_dims, int batch, int parts, bool values_in_keys>
struct Tile {
  static constexpr int kHeads = heads;       // query heads, which share a kv head and its loads
  static constexpr int kKeyDims = key_dims;  // per lane of the team, a power of two up to a warp, that dots a key
  static constexpr int kValueDims = value_dims;
  static constexpr int kBatch = batch;                   // keys and values that a lane works on at once
  static constexpr int kParts = parts;                   // most parts of a row
  static constexpr bool kValuesInKeys = values_in_keys;  // a value is the beginning of its key, and not loaded again
};

template <int heads>
using Narrow = Tile<heads, 8, 8, 4, 16, false>;

// One kv head serves all query heads of latent attention, so that a row has few blocks, and so more parts.
constexpr int kWideParts = 32;
using Latent = Tile<4, 24, 16, 1, kWideParts, true>;
using Wide = Tile<1, 24, 16, 2, kWideParts, false>;

constexpr int64_t kNarrowDim = 32 * Narrow<1>::kKeyDims;
static_assert(kMaxHeadDim == 32 * Wide::kKeyDims && kMaxValueDim == 32 * Wide::kValueDims);

bool is_wide(int64_t head_dim, int64_t value_dim) { return head_dim > kNarrowDim || value_dim > kNarrowDim; }

// kDims elements of a head; what lies past its end reads as zero. Piece j of a lane is number j * lanes + lane of the
// head, so that neighbours read side by side.
template <class T, int kDims>
struct Dims {
  Vec<T> piece[kDims / kVec<T>];

  template <bool kAligned>
  __device__ __forceinline__ void read(const T* head, int lane, int lanes, int size, bool inside = true) {
#pragma unroll
    for (int j = 0; j < kDims / kVec<T>; ++j) {
      const int at = (j * lanes + lane) * kVec<T>;
      piece[j] = zeros<T>();
      if (inside && at < size) piece[j] = load<T, kAligned>(head, at, size);
    }
  }
  __device__ __forceinline__ float operator[](int e) const {
    return static_cast<float>(piece[e / kVec<T>].lane[e % kVec<T>]);
  }
};

// The keys that a query row sees, none if its sequence claims rows outside the cache. All threads of a block look for
// the row's sequence together.
__device__ __forceinline__ KeySpan find_keys(const DraftAttentionParams& p, int64_t row) {
  __shared__ KeySpan found;
  if (threadIdx.x == 0) found = {0, 0};
  __syncthreads();
  for (int64_t b = threadIdx.x; b < p.batch; b += blockDim.x) {
    const int64_t begin = index_at(p.row_offsets, b), stop = index_at(p.row_offsets, b + 1);
    if (begin < 0 || row < begin || row >= stop) continue;
    const int64_t end = stop < p.num_rows ? stop : p.num_rows;
    const int64_t start = index_at(p.cache_starts, b), length = index_at(p.cache_lengths, b);
    if (start >= 0 && length >= end - begin && length <= p.num_slots - start)
      found = visible_keys(row, begin, end, start, length, p.window);
  }
  __syncthreads();
  // Where unchecked offsets let two sequences claim the row, half of `found` may be either's.
  const KeySpan span = found;
  return span.start >= 0 && span.length <= p.num_slots - span.start ? span : KeySpan{0, 0};
}

template <int kParts>
__device__ __forceinline__ int64_t keys_per_part(int64_t length) {
  return (length + kParts * kPartKeys - 1) / (kParts * kPartKeys) * kPartKeys;
}

// Where a part's result lies in the workspace: the weighted sum of values [value_dim], then the maximum and the sum of
// the weights relative to it.
template <int kParts>
__device__ __forceinline__ float* part_result(const DraftAttentionParams& p, int64_t launch_row, int64_t head,
                                              int64_t part) {
  const int64_t index = (launch_row * p.num_q_heads + head) * kParts + part;
  return static_cast<float*>(p.workspace) + index * (p.value_dim + 2);
}

// One lane's share of the softmax over its keys, for one query head.
template <class T, class Tile>
struct Softmax {
  float q[Tile::kKeyDims], values[Tile::kValueDims], max, sum;

  __device__ __forceinline__ void start(const Dims<T, Tile::kKeyDims>& query) {
#pragma unroll
    for (int e = 0; e < Tile::kKeyDims; ++e) q[e] = query[e];
#pragma unroll
    for (int e = 0; e < Tile::kValueDims; ++e) values[e] = 0.0f;
    max = kLowest;
    sum = 0.0f;
  }
  template <class Key>
  __device__ __forceinline__ float dot(const Key& key) const {
    float score = 0.0f;
#pragma unroll
    for (int e = 0; e < Tile::kKeyDims; ++e) score = fmaf(q[e], key[e], score);
    return score;
  }
  // Makes what was summed so far relative to a new maximum.
  __device__ __forceinline__ void rescale(float highest) {
    const float decay = expf(max - highest);
    max = highest;
    sum *= decay;
#pragma unroll
    for (int e = 0; e < Tile::kValueDims; ++e) values[e] *= decay;
  }
  // Scores of -inf weigh nothing.
  template <class Value>
  __device__ __forceinline__ void add(const float (&score)[Tile::kBatch], const Value (&value)[Tile::kBatch]) {
    float highest = max;
#pragma unroll
    for (int j = 0; j < Tile::kBatch; ++j) highest = score[j] > highest ? score[j] : highest;
    // Where a whole warp shares a key, its lanes agree that most keys bring no new maximum.
    if (!Tile::kValuesInKeys || highest > max) rescale(highest);
#pragma unroll
    for (int j = 0; j < Tile::kBatch; ++j) {
      const float weight = expf(score[j] - highest);
      sum += weight;
#pragma unroll
      for (int e = 0; e < Tile::kValueDims; ++e) values[e] = fmaf(weight, value[j][e], values[e]);
    }
  }
};

// Writes the results of all teams together to result_of(head).
template <class T, class Tile, class ResultOf>
__device__ __forceinline__ void join_teams(const Softmax<T, Tile> (&state)[Tile::kHeads], int lanes, int d,
                                           const ResultOf& result_of) {
  constexpr int kHeads = Tile::kHeads, kDims = Tile::kValueDims;
  __shared__ float values[kHeads][kThreads * kDims], maxima[kHeads][kThreads], sums[kHeads][kThreads];
  const int thread = static_cast<int>(threadIdx.x), teams = kThreads / lanes, team = thread / lanes;
  const int lane = thread % lanes, width = lanes * kDims;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int e = 0; e < kDims; ++e)
      values[h][team * width + (e / kVec<T> * lanes + lane) * kVec<T> + e % kVec<T>] = state[h].values[e];
    if (lane != 0) continue;
    maxima[h][team] = state[h].max;
    sums[h][team] = state[h].sum;
  }
  __syncthreads();
  for (int i = thread; i < kHeads * d; i += kThreads) {
    const int h = i / d, dim = i % d;
    float max = kLowest, sum = 0.0f, value = 0.0f;
    for (int s = 0; s < teams; ++s) max = maxima[h][s] > max ? maxima[h][s] : max;
    for (int s = 0; s < teams; ++s) {
      const float weight = expf(maxima[h][s] - max);
      sum = fmaf(weight, sums[h][s], sum);
      value = fmaf(weight, values[h][s * width + dim], value);
    }
    float* result = result_of(h);
    result[dim] = value;
    if (dim > 0) continue;
    result[d] = max;
    result[d + 1] = sum;
  }
}

// A block's work on one part of a row: every team takes every `teams`th key from `begin` to `end`.
template <class T, class Tile>
struct Part {
  Softmax<T, Tile> state[Tile::kHeads];
  int lane, lanes, team, teams;
  int64_t begin, end;
  float scale;

  // q.k by all lanes of a team; -inf for a key past the end.
  template <class Key>
  __device__ __forceinline__ float score(int h, const Key& key, bool inside) const {
    float sum = state[h].dot(key);
    for (int reach = lanes / 2; reach > 0; reach /= 2) sum += __shfl_xor_sync(kAllLanes, sum, reach);
    return inside ? sum * scale : -INFINITY;
  }

  // Keys and values of a batch are on their way together.
  template <bool kAligned>
  __device__ __forceinline__ void attend(const T* keys, int64_t key_stride, int key_dim, const T* values,
                                         int64_t value_stride, int value_dim) {
    constexpr int kBatch = Tile::kBatch;
    for (int64_t base = begin; base < end; base += teams * kBatch) {
      Dims<T, Tile::kKeyDims> key[kBatch];
      Dims<T, Tile::kValueDims> value[kBatch];
      bool inside[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int64_t t = base + j * teams + team;
        inside[j] = t < end;
        key[j].template read<kAligned>(keys + t * key_stride, lane, lanes, key_dim, inside[j]);
        value[j].template read<kAligned>(values + t * value_stride, lane, lanes, value_dim, inside[j]);
      }
#pragma unroll
      for (int h = 0; h < Tile::kHeads; ++h) {
        float scores[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) scores[j] = score(h, key[j], inside[j]);
        state[h].add(scores, value);
      }
    }
  }

  // Values that are the beginnings of their keys. A key is turned into fp32 once for all heads, while the next one is
  // on its way.
  template <bool kAligned>
  __device__ __forceinline__ void attend_latents(const T* keys, int64_t key_stride, int key_dim) {
    Dims<T, Tile::kKeyDims> next;
    next.template read<kAligned>(keys + (begin + team) * key_stride, lane, lanes, key_dim, begin + team < end);
    for (int64_t base = begin; base < end; base += teams) {
      const int64_t t = base + team, after = t + teams;
      float key[1][Tile::kKeyDims];
#pragma unroll
      for (int e = 0; e < Tile::kKeyDims; ++e) key[0][e] = next[e];
      next.template read<kAligned>(keys + after * key_stride, lane, lanes, key_dim, after < end);
#pragma unroll
      for (int h = 0; h < Tile::kHeads; ++h) {
        const float scores[1] = {score(h, key[0], t < end)};
        state[h].add(scores, key);
      }
    }
  }
};

// Block (row, group of query heads, part).
template <class T, class Tile, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    attention_parts_kernel(const DraftAttentionParams p, int64_t first_row, int lanes) {
  const int64_t row = first_row + blockIdx.x, first_head = static_cast<int64_t>(blockIdx.y) * Tile::kHeads;
  const KeySpan keys = find_keys(p, row);
  const int64_t size = keys_per_part<Tile::kParts>(keys.length), begin = blockIdx.z * size;
  const int64_t end = begin + size < keys.length ? begin + size : keys.length;
  if (begin >= end) return;

  const int d = static_cast<int>(p.head_dim), value_dim = static_cast<int>(p.value_dim);
  const int thread = static_cast<int>(threadIdx.x);
  Part<T, Tile> part;
  part.lane = thread % lanes;
  part.lanes = lanes;
  part.team = thread / lanes;
  part.teams = kThreads / lanes;
  part.begin = begin;
  part.end = end;
  part.scale = p.scale;
#pragma unroll
  for (int h = 0; h < Tile::kHeads; ++h) {
    Dims<T, Tile::kKeyDims> query;
    const T* q = static_cast<const T*>(p.q) + row * p.q_stride + (first_head + h) * d;
    query.template read<kAligned>(q, part.lane, lanes, d);
    part.state[h].start(query);
  }

  const int64_t kv_head = first_head / (p.num_q_heads / p.num_kv_heads);
  const T* k_cache = static_cast<const T*>(p.k_cache) + keys.start * p.k_stride + kv_head * p.k_head_stride;
  const T* v_cache = static_cast<const T*>(p.v_cache) + keys.start * p.v_stride + kv_head * p.v_head_stride;
  if constexpr (Tile::kValuesInKeys) {
    part.template attend_latents<kAligned>(k_cache, p.k_stride, d);
  } else {
    part.template attend<kAligned>(k_cache, p.k_stride, d, v_cache, p.v_stride, value_dim);
  }
  join_teams<T, Tile>(part.state, lanes, value_dim,
                      [&](int h) { return part_result<Tile::kParts>(p, blockIdx.x, first_head + h, blockIdx.z); });
}

// Block (row, query head): joins the parts.
template <class T, int kParts>
__global__ void __launch_bounds__(kThreads) attention_join_kernel(const DraftAttentionParams p, int64_t first_row) {
  const int64_t row = first_row + blockIdx.x, head = blockIdx.y, d = p.value_dim;
  const KeySpan keys = find_keys(p, row);
  const int64_t size = keys_per_part<kParts>(keys.length);
  const int parts = keys.length > 0 ? static_cast<int>((keys.length + size - 1) / size) : 0;
  T* out = static_cast<T*>(p.out) + (row * p.num_q_heads + head) * d;
  float max = kLowest;
  for (int s = 0; s < parts; ++s) {
    const float other = part_result<kParts>(p, blockIdx.x, head, s)[d];
    max = other > max ? other : max;
  }
  for (int64_t dim = threadIdx.x; dim < d; dim += kThreads) {
    float sum = 0.0f, value = 0.0f;
    for (int s = 0; s < parts; ++s) {
      const float* result = part_result<kParts>(p, blockIdx.x, head, s);
      const float weight = expf(result[d] - max);
      sum = fmaf(weight, result[d + 1], sum);
      value = fmaf(weight, result[dim], value);
    }
    out[dim] = parts == 0 ? T(0.0f) : T(value / sum);
  }
}

int64_t row_floats(int64_t num_q_heads, int64_t head_dim, int64_t value_dim) {
  const int parts = is_wide(head_dim, value_dim) ? kWideParts : Narrow<1>::kParts;
  return num_q_heads * parts * (value_dim + 2);
}

int64_t rows_per_launch(int64_t num_q_heads, int64_t head_dim, int64_t value_dim) {
  const int64_t rows = kLaunchFloats / row_floats(num_q_heads, head_dim, value_dim);
  return rows > 0 ? rows : 1;
}

template <class T, class Tile, bool kAligned>
int launch(const DraftAttentionParams& p, CUstream_st* stream) {
  int lanes = Tile::kValuesInKeys ? 32 : 1;
  while (lanes * Tile::kKeyDims < p.head_dim || lanes * Tile::kValueDims < p.value_dim) lanes *= 2;
  // No row has more parts than its keys could fill, were they the whole cache.
  const int64_t filled_parts = ceil_div(p.num_slots, kPartKeys);
  const int64_t most_parts = filled_parts < Tile::kParts ? filled_parts : Tile::kParts;
  const int64_t most = rows_per_launch(p.num_q_heads, p.head_dim, p.value_dim);
  for (int64_t row = 0; row < p.num_rows; row += most) {
    const unsigned rows = grid_size(p.num_rows - row < most ? p.num_rows - row : most);
    const dim3 parts(rows, grid_size(p.num_q_heads / Tile::kHeads), grid_size(most_parts));
    const dim3 join(rows, grid_size(p.num_q_heads));
    if (most_parts > 0)
      EAGLE3_LAUNCH((attention_parts_kernel<T, Tile, kAligned>), parts, kThreads, 0, stream, p, row, lanes);
    EAGLE3_LAUNCH((attention_join_kernel<T, Tile::kParts>), join, kThreads, 0, stream, p, row);
  }
  return cudaGetLastError();
}

bool values_are_in_keys(const DraftAttentionParams& p) {
  return p.k_cache == p.v_cache && p.k_stride == p.v_stride && p.k_head_stride == p.v_head_stride &&
         p.value_dim <= p.head_dim;
}

// What no model has, misaligned heads and wide ones with values of their own, is served head by head.
template <class T, bool kAligned>
int launch_for_heads(const DraftAttentionParams& p, CUstream_st* stream) {
  const bool wide = is_wide(p.head_dim, p.value_dim);
  if constexpr (kAligned) {
    const int64_t group = p.num_q_heads / p.num_kv_heads;
    if (wide && group % 4 == 0 && values_are_in_keys(p)) return launch<T, Latent, true>(p, stream);
    if (!wide && group % 4 == 0) return launch<T, Narrow<4>, true>(p, stream);
    if (!wide && group % 2 == 0) return launch<T, Narrow<2>, true>(p, stream);
  }
  return wide ? launch<T, Wide, kAligned>(p, stream) : launch<T, Narrow<1>, kAligned>(p, stream);
}

}  // namespace

int64_t draft_attention_workspace(int64_t num_rows, int64_t num_q_heads, int64_t head_dim, int64_t value_dim) {
  if (num_rows * num_q_heads == 0) return 0;
  const int64_t most = rows_per_launch(num_q_heads, head_dim, value_dim), rows = num_rows < most ? num_rows : most;
  return rows * row_floats(num_q_heads, head_dim, value_dim) * static_cast<int64_t>(sizeof(float));
}

int draft_attention(const DraftAttentionParams& p, CUstream_st* stream) {
  if (p.num_rows == 0 || p.num_q_heads * p.value_dim == 0) return cudaSuccess;
  if (p.head_dim > kMaxHeadDim || p.value_dim > kMaxValueDim) return cudaErrorInvalidValue;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto strides = {p.q_stride, p.head_dim,      p.k_stride, p.k_head_stride,
                          p.v_stride, p.v_head_stride, p.value_dim};
    return for_layout<T>({p.q, p.k_cache, p.v_cache}, strides,
                         [&](auto aligned) { return launch_for_heads<T, aligned.value>(p, stream); });
  });
}

}  // namespace eagle3::cuda
