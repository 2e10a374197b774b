// Attention of one query row at one CPU level: online softmax over fixed blocks of keys, everything in fp32.
#pragma once

#include "vec.h"
#include "vector_kernels.h"

namespace eagle3::cpu::EAGLE3_CPU_LEVEL {

constexpr int kKeyBlock = 64;
constexpr float kLowest = -__FLT_MAX__;

template <class T>
static float dot(const float* q, const T* key, int64_t n) {
  Pair sum{};
  for_chunks(n, [&](int64_t i, auto at) {
    const Pair k = at.read(key + i);
    sum.a = fma(k.a, load_bits<F32>(q + i), sum.a);
    sum.b = fma(k.b, load_bits<F32>(q + i + kLanes), sum.b);
  });
  return reduce_add(sum.a + sum.b);
}

// acc = acc * decay + sum over the block of weight[t] * value[t]
template <class T>
static void add_values(float* acc, float decay, const float* weight, const T* value, int64_t stride, int64_t count,
                       int64_t n) {
  for_chunks(n, [&](int64_t i, auto at) {
    Pair sum = load(acc + i);
    sum.a *= decay;
    sum.b *= decay;
    for (int64_t t = 0; t < count; ++t) {
      const Pair v = at.read(value + t * stride + i);
      sum.a = fma(v.a, splat(weight[t]), sum.a);
      sum.b = fma(v.b, splat(weight[t]), sum.b);
    }
    store(acc + i, sum);
  });
}

// The running maximum and normaliser of one head.
struct Softmax {
  float max, sum;
};

// Turns a block of scores into weights relative to the new maximum; returns what the earlier sums shrink by.
static float softmax_block(Softmax& state, float* score, int64_t count) {
  float block_max = state.max;
  for (int64_t t = 0; t < count; ++t) block_max = score[t] > block_max ? score[t] : block_max;
  const float decay = exp(splat(state.max - block_max))[0];
  for (int64_t t = count; t < kKeyBlock; ++t) score[t] = kLowest;  // exp gives 0
  F32 sum{};
  for (int64_t t = 0; t < kKeyBlock; t += kLanes) {
    const F32 weight = exp(load_bits<F32>(score + t) - block_max);
    store_bits(score + t, weight);
    sum += weight;
  }
  state.sum = state.sum * decay + reduce_add(sum);
  state.max = block_max;
  return decay;
}

// Per head: q and the output sum in fp32, its softmax state.
static int64_t attention_scratch(int64_t group, int64_t head_dim) { return group * (2 * padded(head_dim) + 2); }

template <class T>
static void attention(const AttentionRow& p) {
  const int64_t d = p.head_dim, width = padded(d);
  float* const q = p.scratch;
  float* const acc = q + p.group * width;
  Softmax* const state = (Softmax*)(acc + p.group * width);
  for (int64_t h = 0; h < p.group; ++h) {
    const T* head = (const T*)p.q + h * d;
    for_chunks(d, [&](int64_t i, auto at) {
      store(q + h * width + i, at.read(head + i));
      store(acc + h * width + i, Pair{});
    });
    state[h] = {kLowest, 0.f};
  }
  for (int64_t begin = 0; begin < p.length; begin += kKeyBlock) {
    const int64_t count = p.length - begin < kKeyBlock ? p.length - begin : kKeyBlock;
    const T* keys = (const T*)p.k_cache + begin * p.k_stride;
    const T* values = (const T*)p.v_cache + begin * p.v_stride;
    for (int64_t h = 0; h < p.group; ++h) {
      float score[kKeyBlock];
      for (int64_t t = 0; t < count; ++t) score[t] = p.scale * dot(q + h * width, keys + t * p.k_stride, d);
      const float decay = softmax_block(state[h], score, count);
      add_values(acc + h * width, decay, score, values, p.v_stride, count, d);
    }
  }
  for (int64_t h = 0; h < p.group; ++h) {
    T* head = (T*)p.out + h * d;
    for_chunks(d, [&](int64_t i, auto at) {
      const Pair sum = load(acc + h * width + i);
      at.write(head + i, {sum.a / state[h].sum, sum.b / state[h].sum});
    });
  }
}

}  // namespace eagle3::cpu::EAGLE3_CPU_LEVEL
