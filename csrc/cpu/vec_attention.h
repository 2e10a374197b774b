// Attention of one query row at one CPU level: online softmax over fixed blocks of keys, everything in fp32.
#pragma once

#include "vec.h"
#include "vector_kernels.h"

namespace eagle3::cpu::EAGLE3_CPU_LEVEL {

constexpr int kKeyBlock = 64;
constexpr float kLowest = -__FLT_MAX__;

// out[h * out_stride] = scale * dot(q of head h, key) for kHeads heads, q_stride apart.
template <int kHeads, class T>
static void scores(const float* q, int64_t q_stride, const T* key, int64_t n, float scale, float* out,
                   int64_t out_stride) {
  Pair sum[kHeads] = {};
  for_chunks(n, [&](int64_t i, auto at) {
    const Pair k = at.read(key + i);
    for (int h = 0; h < kHeads; ++h) {
      sum[h].a = fma(k.a, load_bits<F32>(q + h * q_stride + i), sum[h].a);
      sum[h].b = fma(k.b, load_bits<F32>(q + h * q_stride + i + kLanes), sum[h].b);
    }
  });
  for (int h = 0; h < kHeads; ++h) out[h * out_stride] = scale * reduce_add(sum[h].a + sum[h].b);
}

// acc = acc * decay + sum over the block of weight[t] * value[t], for kHeads heads whose acc are acc_stride apart.
template <int kHeads, class T>
static void add_values(float* acc, int64_t acc_stride, const float* decay, const float* weight, const T* value,
                       int64_t stride, int64_t count, int64_t n) {
  for_chunks(n, [&](int64_t i, auto at) {
    Pair sum[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      sum[h] = load(acc + h * acc_stride + i);
      sum[h].a *= decay[h];
      sum[h].b *= decay[h];
    }
    for (int64_t t = 0; t < count; ++t) {
      const Pair v = at.read(value + t * stride + i);
      for (int h = 0; h < kHeads; ++h) {
        sum[h].a = fma(v.a, splat(weight[h * kKeyBlock + t]), sum[h].a);
        sum[h].b = fma(v.b, splat(weight[h * kKeyBlock + t]), sum[h].b);
      }
    }
    for (int h = 0; h < kHeads; ++h) store(acc + h * acc_stride + i, sum[h]);
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
  // Not kLowest: it weighs 1 where all scores are -inf, whose softmax is NaN.
  for (int64_t t = count; t < kKeyBlock; ++t) score[t] = -__builtin_inff();
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
static int64_t attention_scratch(int64_t heads, int64_t head_dim, int64_t value_dim) {
  return heads * (padded(head_dim) + padded(value_dim) + 2);
}

// The keys of a block for kHeads heads, which share the loads of keys and values. A head's result is the same bits
// whichever heads it is computed with.
template <int kHeads, class T>
static void attend_block(const AttentionRow& p, const float* q, float* acc, Softmax* state, int64_t begin) {
  const int64_t rest = p.length - begin, count = rest < kKeyBlock ? rest : kKeyBlock;
  const T* keys = (const T*)p.k_cache + begin * p.k_stride;
  const T* values = (const T*)p.v_cache + begin * p.v_stride;
  float score[kHeads * kKeyBlock], decay[kHeads];
  for (int64_t t = 0; t < count; ++t)
    scores<kHeads>(q, padded(p.head_dim), keys + t * p.k_stride, p.head_dim, p.scale, score + t, kKeyBlock);
  for (int h = 0; h < kHeads; ++h) decay[h] = softmax_block(state[h], score + h * kKeyBlock, count);
  add_values<kHeads>(acc, padded(p.value_dim), decay, score, values, p.v_stride, count, p.value_dim);
}

template <class T>
static void attention(const AttentionRow& p) {
  const int64_t q_width = padded(p.head_dim), width = padded(p.value_dim);
  float* const q = p.scratch;
  float* const acc = q + p.heads * q_width;
  Softmax* const state = (Softmax*)(acc + p.heads * width);
  for (int64_t h = 0; h < p.heads; ++h) {
    const T* head = (const T*)p.q + h * p.head_dim;
    for_chunks(p.head_dim, [&](int64_t i, auto at) { store(q + h * q_width + i, at.read(head + i)); });
    for_chunks(p.value_dim, [&](int64_t i, auto) { store(acc + h * width + i, Pair{}); });
    state[h] = {kLowest, 0.f};
  }
  for (int64_t begin = 0; begin < p.length; begin += kKeyBlock) {
    int64_t h = 0;
    for (; h + 4 <= p.heads; h += 4) attend_block<4, T>(p, q + h * q_width, acc + h * width, state + h, begin);
    for (; h < p.heads; ++h) attend_block<1, T>(p, q + h * q_width, acc + h * width, state + h, begin);
  }
  for (int64_t h = 0; h < p.heads; ++h) {
    T* head = (T*)p.out + h * p.value_dim;
    for_chunks(p.value_dim, [&](int64_t i, auto at) {
      const Pair sum = load(acc + h * width + i);
      at.write(head + i, {sum.a / state[h].sum, sum.b / state[h].sum});
    });
  }
}

}  // namespace eagle3::cpu::EAGLE3_CPU_LEVEL
