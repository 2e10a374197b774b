#include <cstring>

#include "rms_norm.h"
#include "rows.h"

namespace eagle3::cpu {
namespace {

void draft_input_row(const DraftInputParams& p, int64_t n) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const int64_t size = p.hidden_size, bytes = size * element_size(p.dtype);
  const int64_t token = index_at(p.tokens, n);
  void* left = advance(p.x, n * 2 * size, p.dtype);
  void* right = advance(left, size, p.dtype);
  if (is_padding_token(token, !p.token_embeddings, p.vocab_size)) {
    std::memset(left, 0, 2 * bytes);
    return;
  }
  const void* embedding = p.token_embeddings ? advance(p.token_embeddings, n * p.token_embeddings_stride, p.dtype)
                                             : advance(p.embed_weight, token * size, p.dtype);
  rms_norm_row(kernels, embedding, p.embed_norm, p.eps, left, size);
  const void* hidden = advance(p.hidden, n * p.hidden_stride, p.dtype);
  if (p.hidden_norm) {
    rms_norm_row(kernels, hidden, p.hidden_norm, p.eps, right, size);
  } else {
    std::memcpy(right, hidden, bytes);
  }
}

}  // namespace

void draft_input(const DraftInputParams& p) {
  for_rows(p.num_rows, 2 * p.hidden_size, [&](int64_t n) { draft_input_row(p, n); });
}

}  // namespace eagle3::cpu
