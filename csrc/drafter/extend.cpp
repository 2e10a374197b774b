// Drafter::extend: the checks, and the rows in chunks.

#include <algorithm>

#include "../ops/launch.h"
#include "drafter.h"

namespace eagle3 {
namespace {

void check_vector(const at::Tensor& tensor, const char* name, const at::Tensor& own) {
  TORCH_CHECK_VALUE(tensor.dim() == 1, name, " must have one dimension, got ", tensor.sizes());
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt, name,
                    " must be int64 or int32, got ", tensor.scalar_type());
  TORCH_CHECK_VALUE(tensor.device() == own.device(), name, " is on ", tensor.device(), ", the drafter on ",
                    own.device());
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kLong).contiguous();
  const int64_t* data = wide.const_data_ptr<int64_t>();
  return {data, data + wide.numel()};
}

void check_rows(const at::Tensor& tensor, const char* name, int64_t rows, int64_t width, const at::TensorOptions& own) {
  TORCH_CHECK_VALUE(tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == width, name, " is ",
                    tensor.sizes(), ", expected [", rows, ", ", width, "]");
  TORCH_CHECK_VALUE(tensor.scalar_type() == c10::typeMetaToScalarType(own.dtype()), name, " is ", tensor.scalar_type(),
                    ", the drafter is ", own.dtype());
  TORCH_CHECK_VALUE(tensor.device() == own.device(), name, " is on ", tensor.device(), ", the drafter on ",
                    own.device());
  TORCH_CHECK_VALUE(tensor.stride(1) == 1 || width == 1, name,
                    " must be contiguous in its last dimension, got strides ", tensor.strides());
}

}  // namespace

void Drafter::check_shapes(const ExtendInput& input) const {
  const int64_t rows = input.features.dim() == 2 ? input.features.size(0) : 0;
  check_rows(input.features, "features", rows, sizes_.features_width(), forward_.options());
  check_vector(input.tokens, "tokens", lengths_);
  check_vector(input.positions, "positions", lengths_);
  check_vector(input.row_offsets, "row_offsets", lengths_);
  TORCH_CHECK_VALUE(input.tokens.size(0) == rows && input.positions.size(0) == rows, "features have ", rows,
                    " rows, but tokens has ", input.tokens.size(0), " and positions ", input.positions.size(0));
  if (input.token_embeddings) {
    check_rows(*input.token_embeddings, "token_embeddings", rows, sizes_.hidden_size, forward_.options());
  }
  const int64_t batch = input.row_offsets.size(0) - 1;
  TORCH_CHECK_VALUE(batch >= 0, "row_offsets is empty; it has one entry more than there are sequences");
  TORCH_CHECK_VALUE(batch <= max_batch_, "row_offsets delimits ", batch,
                    " sequences; this drafter was built for max_batch=", max_batch_);
  if (!input.sequences) return;
  check_vector(*input.sequences, "sequences", lengths_);
  TORCH_CHECK_VALUE(input.sequences->size(0) == batch, "sequences names ", input.sequences->size(0),
                    " sequences, row_offsets delimits ", batch);
}

// For indices that the host may read. Returns the rows that are not padding.
int64_t Drafter::check_values(const ExtendInput& input) const {
  const std::vector<int64_t> offsets = values(input.row_offsets), tokens = values(input.tokens);
  const std::vector<int64_t> positions = values(input.positions), lengths = host_lengths();
  TORCH_CHECK_VALUE(offsets.front() == 0 && std::is_sorted(offsets.begin(), offsets.end()),
                    "row_offsets must start at 0 and never fall, got ", offsets);
  TORCH_CHECK_INDEX(offsets.back() <= input.features.size(0), "row_offsets ends at ", offsets.back(),
                    ", but features have ", input.features.size(0), " rows");
  std::vector<bool> seen(max_batch_, false);
  const std::vector<int64_t> sequences = values(input.sequences.value_or(one_row_each_));
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    const int64_t sequence = sequences[b];
    check_sequence(sequence);
    TORCH_CHECK_VALUE(!seen[sequence], "sequence ", sequence, " appears twice in one extend");
    seen[sequence] = true;
    const int64_t length = lengths[sequence] + offsets[b + 1] - offsets[b];
    TORCH_CHECK_VALUE(length <= max_length_, "sequence ", sequence, " would grow to ", length,
                      " rows; this drafter was built for max_length=", max_length_);
  }
  const int64_t table = forward_.weights().cos_sin.size(0);
  for (int64_t row = 0; row < offsets.back(); ++row) {
    TORCH_CHECK_INDEX(positions[row] >= 0 && positions[row] < table, "positions[", row, "] is ", positions[row],
                      "; the RoPE table covers [0, ", table, ")");
    const bool known = tokens[row] >= 0 && tokens[row] < sizes_.vocab_size;
    TORCH_CHECK_INDEX(known || input.token_embeddings, "tokens[", row, "] is ", tokens[row], "; the vocabulary is [0, ",
                      sizes_.vocab_size, ")");
  }
  return offsets.back();
}

void Drafter::extend(const ExtendInput& given) {
  check_shapes(given);
  const int64_t rows = can_read_values(given.row_offsets) ? check_values(given) : given.features.size(0);
  reserve(rows);
  ExtendInput input = given;
  for (at::Tensor* index : {&input.tokens, &input.positions, &input.row_offsets}) *index = index->contiguous();
  if (input.sequences) input.sequences = input.sequences->contiguous();

  batch_ = input.row_offsets.size(0) - 1;
  // Without a row there is still one chunk: it says that no sequence has any to draft from.
  int64_t first = 0;
  do {
    const int64_t count = std::min(forward_.max_rows(), rows - first);
    extend_chunk(input, first, count);
    first += count;
  } while (first < rows);
  ready_ = true;
}

// A chunk may begin and end anywhere: in the middle of a sequence, or with several in it.
void Drafter::extend_chunk(const ExtendInput& input, int64_t first, int64_t count) {
  const ExtendRowsParams place{.state = state(),
                               .row_offsets = indices(input.row_offsets),
                               .sequences = input.sequences ? indices(*input.sequences) : Indices{},
                               .batch = batch_,
                               .first_row = first,
                               .num_rows = count,
                               .slots = rows_.slots.data_ptr<int64_t>(),
                               .chunk_offsets = rows_.row_offsets.data_ptr<int64_t>(),
                               .cache_starts = rows_.cache_starts.data_ptr<int64_t>(),
                               .cache_lengths = rows_.cache_lengths.data_ptr<int64_t>(),
                               .last_rows = rows_.last_rows.data_ptr<int64_t>()};
  launch<cpu::extend_rows, cuda::extend_rows>("extend", lengths_, place);
  if (count == 0) return;

  // With embeddings, tokens are placeholders, none of which means padding.
  const at::Tensor tokens = input.token_embeddings ? no_tokens_ : input.tokens.narrow(0, first, count);
  const at::Tensor positions = input.positions.narrow(0, first, count);
  const Rows rows{.count = count,
                  .batch = batch_,
                  .tokens = indices(tokens),
                  .positions = indices(positions),
                  .slots = {place.slots},
                  .row_offsets = {place.chunk_offsets},
                  .cache_starts = {place.cache_starts},
                  .cache_lengths = {place.cache_lengths},
                  .token_embeddings =
                      input.token_embeddings ? input.token_embeddings->narrow(0, first, count) : at::Tensor()};
  forward_.fuse(input.features.narrow(0, first, count));
  forward_.layers(rows, cache_);

  const KeepRowsParams keep{.dtype = dtype_of(kept_s_),
                            .state = place.state,
                            .row_offsets = place.row_offsets,
                            .positions = rows.positions,
                            .last_rows = place.last_rows,
                            .batch = batch_,
                            .hidden_size = sizes_.hidden_size,
                            .s_stride = forward_.s().stride(0),
                            .y_stride = forward_.y().stride(0),
                            .s = forward_.s().const_data_ptr(),
                            .y = forward_.y().const_data_ptr(),
                            .kept_s = kept_s_.data_ptr(),
                            .kept_y = kept_y_.data_ptr()};
  launch<cpu::keep_rows, cuda::keep_rows>("extend", lengths_, keep);
}

}  // namespace eagle3
