// The one linear layer of the ops and the drafter.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace eagle3 {

// Up to here one pass over the weights beats a GEMM library; where ATen has no native GEMM of the type, up to there.
constexpr int64_t kSkinnyRows = 8;
constexpr int64_t kSkinnyRowsWithoutGemm = 32;

// y = x W^T (+ bias) for x [m, k] (rows contiguous, any row stride), weight [n, k], bias [n], y [m, n], all of one
// dtype and device; weight, bias and y contiguous. fp32 accumulation, rounded once. On the CPU up to kSkinnyRows rows
// are row-invariant bit for bit; more rows use ATen's GEMM. Unchecked: callers have checked or made the tensors.
void linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::Tensor& y);

// A tensor as an optional argument: undefined means absent.
inline std::optional<at::Tensor> present(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

}  // namespace eagle3
