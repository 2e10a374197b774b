#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

std::tuple<at::Tensor, at::Tensor> verify_greedy(const at::Tensor& draft_tokens_, const at::Tensor& target_tokens_) {
  Arg draft("verify_greedy", "draft_tokens", draft_tokens_), target("verify_greedy", "target_tokens", target_tokens_);
  draft.shape({-1, -1}, "[B, D]");
  const int64_t batch = draft.size(0), num_draft_tokens = draft.size(1);
  target.shape({batch, num_draft_tokens + 1}, "[B, D + 1]").same_device(draft);
  const at::TensorOptions int64 = draft_tokens_.options().dtype(at::kLong);
  at::Tensor accept_lengths = at::empty({batch}, int64), next_tokens = at::empty({batch}, int64);
  const VerifyGreedyParams params{
      .draft_tokens = draft.indices(),
      .target_tokens = target.indices(),
      .batch = batch,
      .num_draft_tokens = num_draft_tokens,
      .accept_lengths = accept_lengths.mutable_data_ptr<int64_t>(),
      .next_tokens = next_tokens.mutable_data_ptr<int64_t>(),
  };
  launch<cpu::verify_greedy, cuda::verify_greedy>("verify_greedy", draft_tokens_, params);
  return {accept_lengths, next_tokens};
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("verify_greedy", eagle3::verify_greedy); }
