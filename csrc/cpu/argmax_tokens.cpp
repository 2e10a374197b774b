#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>
#include <limits>

#include "../core/argmax.h"
#include "rows.h"

namespace eagle3::cpu {
namespace {

constexpr int64_t kScanBlock = 1024;

// The vector kernel finds each block's maximum; only the winning block is searched for its index.
template <class T>
Candidate find_best(const RowKernels& kernels, const T* logits, int64_t size) {
  Candidate best = {-std::numeric_limits<float>::infinity(), 0};
  for (int64_t begin = 0; begin < size; begin += kScanBlock) {
    const Candidate block = {kernels.max(logits + begin, std::min(kScanBlock, size - begin)), begin};
    if (beats(block, best)) best = block;
  }
  while (argmax_key(static_cast<float>(logits[best.index])) != best.value) ++best.index;
  return best;
}

template <class T>
void argmax_row(const ArgmaxTokensParams& p, int64_t r) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const T* logits = static_cast<const T*>(p.logits) + r * p.logits_stride;
  const Candidate best = find_best(kernels, logits, p.vocab_size);
  const bool has_winner = is_winner(best);
  p.tokens[r] = p.target_ids ? p.target_ids[best.index] : best.index;
  p.valid[r] = has_winner;
  if (!p.log_probs) return;
  // Without a winner there is no distribution: NaN, as log_softmax gives.
  p.log_probs[r] = has_winner ? -std::log(kernels.sum_exp(logits, best.value, p.vocab_size))
                              : std::numeric_limits<float>::quiet_NaN();
}

template <class T>
void argmax_rows(const ArgmaxTokensParams& p) {
  for_rows(p.num_rows, p.vocab_size, [&](int64_t r) { argmax_row<T>(p, r); });
}

}  // namespace

void argmax_tokens(const ArgmaxTokensParams& p) {
  switch (p.dtype) {
    case DType::kFloat32: return argmax_rows<float>(p);
    case DType::kBFloat16: return argmax_rows<c10::BFloat16>(p);
    case DType::kFloat16: return argmax_rows<c10::Half>(p);
  }
}

}  // namespace eagle3::cpu
