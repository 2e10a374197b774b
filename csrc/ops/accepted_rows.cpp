#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

std::tuple<at::Tensor, at::Tensor> accepted_rows(const at::Tensor& accept_lengths_, int64_t width, bool block_front) {
  Arg lengths("accepted_rows", "accept_lengths", accept_lengths_);
  const Indices values = lengths.shape({-1}, "[B]").indices();
  const int64_t batch = lengths.size(0);
  TORCH_CHECK_VALUE(width >= 1, "accepted_rows: width is ", width, ", expected at least 1 (D + 1 rows per sequence)");
  TORCH_CHECK_VALUE(width <= std::numeric_limits<int64_t>::max() / std::max<int64_t>(batch, 1),
                    "accepted_rows: width is ", width, ", and ", batch,
                    " blocks of it have more rows than an int64 counts");
  for (int64_t b = 0; b < batch && can_read_values(lengths.tensor()); ++b) {
    const int64_t length = index_at(values, b);
    TORCH_CHECK_VALUE(length >= 0 && length <= width, "accepted_rows: accept_lengths[", b, "] is ", length,
                      ", expected [0, width = ", width, "]");
  }
  const at::TensorOptions int64 = accept_lengths_.options().dtype(at::kLong);
  at::Tensor rows = at::empty({batch * width}, int64), row_offsets = at::empty({batch + 1}, int64);
  const AcceptedRowsParams params{
      .accept_lengths = values,
      .batch = batch,
      .width = width,
      .block_front = block_front,
      .rows = rows.mutable_data_ptr<int64_t>(),
      .row_offsets = row_offsets.mutable_data_ptr<int64_t>(),
  };
  launch<cpu::accepted_rows, cuda::accepted_rows>("accepted_rows", rows, params);
  return {rows, row_offsets};
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("accepted_rows", eagle3::accepted_rows); }
