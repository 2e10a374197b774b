#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "checks.h"
#include "launch.h"
#include "linear.h"

namespace eagle3 {
namespace {

at::Tensor skinny_linear(const at::Tensor& x_, const at::Tensor& weight_, const std::optional<at::Tensor>& bias_) {
  Arg x("skinny_linear", "x", x_), weight("skinny_linear", "weight", weight_);
  x.shape({-1, -1}, "[m, k]").readable_rows().dtype();
  weight.shape({-1, x.size(1)}, "[n, k]").same_dtype_and_device(x).readable_contiguous();
  std::optional<at::Tensor> bias;
  if (bias_) {
    Arg checked("skinny_linear", "bias", *bias_);
    checked.shape({weight.size(0)}, "[n]").same_dtype_and_device(x).readable_contiguous();
    bias = checked.tensor();
  }
  at::Tensor y = at::empty({x.size(0), weight.size(0)}, x_.options());
  linear(x.tensor(), weight.tensor(), bias, y);
  return y;
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("skinny_linear", eagle3::skinny_linear); }
