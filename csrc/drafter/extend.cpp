// Drafter::extend: the checks, and the rows in chunks.
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "drafter.h"

namespace eagle3 {
namespace {

void check_vector(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.dim() == 1, name, " must have one dimension, got ", tensor.sizes());
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt, name,
                    " must be int64 or int32, got ", tensor.scalar_type());
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), name, " is on ", tensor.device(), "; the drafter runs on the CPU");
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

// Who owns which rows, from row_offsets and sequences, after every check that needs no value of a token or position.
std::vector<Segment> Drafter::checked(const ExtendInput& input) const {
  const int64_t rows = input.features.dim() == 2 ? input.features.size(0) : 0;
  check_rows(input.features, "features", rows, sizes_.features_width(), forward_.options());
  check_vector(input.tokens, "tokens");
  check_vector(input.positions, "positions");
  check_vector(input.row_offsets, "row_offsets");
  TORCH_CHECK_VALUE(input.tokens.size(0) == rows && input.positions.size(0) == rows, "features have ", rows,
                    " rows, but tokens has ", input.tokens.size(0), " and positions ", input.positions.size(0));
  if (input.token_embeddings) {
    check_rows(*input.token_embeddings, "token_embeddings", rows, sizes_.hidden_size, forward_.options());
  }
  const std::vector<int64_t> offsets = values(input.row_offsets);
  TORCH_CHECK_VALUE(!offsets.empty() && offsets.front() == 0 && std::is_sorted(offsets.begin(), offsets.end()),
                    "row_offsets must start at 0 and never fall, got ", offsets);
  TORCH_CHECK_INDEX(offsets.back() <= rows, "row_offsets ends at ", offsets.back(), ", but features have ", rows,
                    " rows");
  const int64_t batch = static_cast<int64_t>(offsets.size()) - 1;
  std::vector<int64_t> sequences(batch);
  for (int64_t b = 0; b < batch; ++b) sequences[b] = b;
  if (input.sequences) {
    check_vector(*input.sequences, "sequences");
    sequences = values(*input.sequences);
    TORCH_CHECK_VALUE(static_cast<int64_t>(sequences.size()) == batch, "sequences names ", sequences.size(),
                      " sequences, row_offsets delimits ", batch);
  }
  std::vector<bool> seen(cache_.max_batch(), false);
  std::vector<Segment> segments;
  for (int64_t b = 0; b < batch; ++b) {
    const Segment segment{sequences[b], offsets[b], offsets[b + 1] - offsets[b]};
    check_sequence(segment.sequence);
    TORCH_CHECK_VALUE(!seen[segment.sequence], "sequence ", segment.sequence, " appears twice in one extend");
    seen[segment.sequence] = true;
    const int64_t length = cache_.lengths[segment.sequence] + segment.num_rows;
    TORCH_CHECK_VALUE(length <= cache_.max_length(), "sequence ", segment.sequence, " would grow to ", length,
                      " rows; this drafter was built for max_length=", cache_.max_length());
    segments.push_back(segment);
  }
  return segments;
}

void Drafter::check_values(const ExtendInput& input, const std::vector<Segment>& segments) const {
  const std::vector<int64_t> tokens = values(input.tokens), positions = values(input.positions);
  const int64_t table = forward_.weights().cos_sin.size(0);
  const int64_t end = segments.empty() ? 0 : segments.back().first_row + segments.back().num_rows;
  for (int64_t row = 0; row < end; ++row) {
    TORCH_CHECK_INDEX(positions[row] >= 0 && positions[row] < table, "positions[", row, "] is ", positions[row],
                      "; the RoPE table covers [0, ", table, ")");
    const bool known = tokens[row] >= 0 && tokens[row] < sizes_.vocab_size;
    TORCH_CHECK_INDEX(known || input.token_embeddings, "tokens[", row, "] is ", tokens[row], "; the vocabulary is [0, ",
                      sizes_.vocab_size, ")");
  }
}

void Drafter::extend(const ExtendInput& input) {
  const at::NoGradGuard no_grad;
  const std::vector<Segment> segments = checked(input);
  check_values(input, segments);
  int64_t longest = 0;
  for (const Segment& segment : segments) {
    longest = std::max(longest, cache_.lengths[segment.sequence] + segment.num_rows);
  }
  cache_.reserve(longest);

  // Chunks bound the workspace: a long prompt is cut within a sequence, short ones share a chunk.
  std::vector<Segment> chunk;
  int64_t room = forward_.max_rows();
  const auto flush = [&] {
    if (!chunk.empty()) extend_chunk(input, chunk);
    chunk.clear();
    room = forward_.max_rows();
  };
  for (Segment rest : segments) {
    while (rest.num_rows > 0) {
      const int64_t taken = std::min(rest.num_rows, room);
      chunk.push_back({rest.sequence, rest.first_row, taken});
      rest.first_row += taken;
      rest.num_rows -= taken;
      room -= taken;
      if (room == 0) flush();
    }
  }
  flush();

  extended_.clear();
  for (const Segment& segment : segments) extended_.push_back(segment.num_rows > 0 ? segment.sequence : -1);
  ready_ = true;
}

// Rows of `chunk` are consecutive in the caller's tensors: segments follow row_offsets, and empty ones are left out.
void Drafter::extend_chunk(const ExtendInput& input, const std::vector<Segment>& chunk) {
  const int64_t first = chunk.front().first_row;
  const int64_t count = chunk.back().first_row + chunk.back().num_rows - first;
  Rows rows;
  rows.tokens = values(input.tokens.narrow(0, first, count));
  rows.positions = values(input.positions.narrow(0, first, count));
  if (input.token_embeddings) {
    rows.token_embeddings = input.token_embeddings->narrow(0, first, count);
    std::fill(rows.tokens.begin(), rows.tokens.end(), 0);  // placeholders may be negative, which would mean padding
  }
  for (const Segment& segment : chunk) {
    int64_t& length = cache_.lengths[segment.sequence];
    for (int64_t i = 0; i < segment.num_rows; ++i) rows.slots.push_back(cache_.slot(segment.sequence, length + i));
    length += segment.num_rows;
    rows.close_group(cache_.slot(segment.sequence, 0), length);
  }
  forward_.fuse(input.features.narrow(0, first, count));
  forward_.layer(rows, cache_);
  for (const Segment& segment : chunk) {
    const int64_t last = segment.first_row + segment.num_rows - 1 - first;
    kept_s_[segment.sequence].copy_(forward_.s()[last]);
    kept_y_[segment.sequence].copy_(forward_.y()[last]);
    kept_position_[segment.sequence] = rows.positions[last];
  }
}

}  // namespace eagle3
