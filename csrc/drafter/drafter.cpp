#include "drafter.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "../ops/launch.h"

namespace eagle3 {
namespace {

constexpr int64_t kChunkRows = 512;  // rows of one forward in extend: enough for GEMMs, little enough for workspace
constexpr int64_t kFirstCapacity = 256;

}  // namespace

Drafter::Drafter(const DrafterSizes& sizes, const WeightsByName& weights, int64_t max_batch, int64_t max_length)
    : sizes_(sizes),
      max_batch_(max_batch),
      max_length_(max_length),
      forward_(sizes, DrafterWeights::from_names(sizes, weights), std::max(max_batch, std::min(kChunkRows, max_length)),
               max_batch),
      cache_(sizes, max_batch,
             can_read_values(forward_.weights().embedding) ? std::min(kFirstCapacity, max_length) : max_length,
             forward_.options()),
      kept_s_(at::zeros({max_batch, sizes.hidden_size}, forward_.options())),
      kept_y_(at::zeros_like(kept_s_)) {
  const int64_t max_rows = forward_.max_rows();
  const auto integers = [&](int64_t count) { return at::zeros({count}, forward_.options().dtype(at::kLong)); };
  lengths_ = integers(max_batch);
  extended_ = integers(max_batch);
  positions_ = integers(max_batch);
  rows_ = {integers(max_batch),     integers(max_batch), integers(max_rows), integers(max_batch + 1),
           integers(max_batch),     integers(max_batch), integers(max_batch)};
  no_tokens_ = integers(max_rows);
  one_row_each_ = at::arange(max_batch + 1, forward_.options().dtype(at::kLong));
  chosen_ = integers(max_batch);
  valid_ = at::zeros({max_batch}, forward_.options().dtype(at::kBool));
  chosen_log_probs_ = at::zeros({max_batch}, forward_.options().dtype(at::kFloat));
  draft_lengths_ = integers(max_batch);
  argmax_workspace_ = workspace<cuda::argmax_tokens_workspace>(kept_y_, max_batch, sizes.draft_vocab_size);
}

DrafterState Drafter::state() const {
  return {lengths_.data_ptr<int64_t>(), extended_.data_ptr<int64_t>(), positions_.data_ptr<int64_t>(), max_batch_,
          cache_.capacity(), forward_.weights().cos_sin.size(0)};
}

std::vector<int64_t> Drafter::host_lengths() const {
  const int64_t* data = lengths_.const_data_ptr<int64_t>();
  return {data, data + max_batch_};
}

void Drafter::reserve(int64_t rows) {
  if (!can_read_values(lengths_)) return;
  const std::vector<int64_t> lengths = host_lengths();
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  cache_.reserve(std::min(longest + rows, max_length_), longest, max_length_);
}

void Drafter::check_sequence(int64_t sequence) const {
  TORCH_CHECK_INDEX(sequence >= 0 && sequence < max_batch_, "sequence ", sequence, " is outside [0, ", max_batch_,
                    "); this drafter was built for max_batch=", max_batch_);
}

void Drafter::claim_draft(int64_t num_tokens) {
  TORCH_CHECK_VALUE(num_tokens >= 1, "num_tokens is ", num_tokens, "; a draft has at least one token");
  TORCH_CHECK_VALUE(ready_, "draft() needs an extend() first: one draft per extend, none after a reset or truncate");
  TORCH_CHECK_VALUE(num_tokens <= max_length_, "num_tokens is ", num_tokens,
                    "; this drafter was built for max_length=", max_length_);
  const int64_t table = forward_.weights().cos_sin.size(0);
  for (int64_t b = 0; can_read_values(lengths_) && b < batch_; ++b) {
    const int64_t sequence = extended_.const_data_ptr<int64_t>()[b];
    if (sequence < 0) continue;
    const int64_t length = lengths_.const_data_ptr<int64_t>()[sequence] + num_tokens - 1;
    TORCH_CHECK_VALUE(length <= max_length_, "drafting ", num_tokens, " tokens would grow sequence ", sequence, " to ",
                      length, " rows; this drafter was built for max_length=", max_length_);
    const int64_t position = positions_.const_data_ptr<int64_t>()[b] + num_tokens - 1;
    TORCH_CHECK_INDEX(position < table, "drafting ", num_tokens, " tokens reaches position ", position,
                      "; the RoPE table covers [0, ", table, ")");
  }
  ready_ = false;
}

// [B, D] of the kept buffers, which grow for the longest draft yet.
DraftTokens Drafter::draft_buffers(int64_t num_tokens) {
  const int64_t needed = max_batch_ * num_tokens, count = batch_ * num_tokens;
  if (!draft_tokens_.defined() || draft_tokens_.numel() < needed) {
    draft_tokens_ = at::empty({needed}, lengths_.options());
    draft_log_probs_ = at::empty({needed}, chosen_log_probs_.options());
  }
  return {draft_tokens_.narrow(0, 0, count).view({batch_, num_tokens}), draft_lengths_.narrow(0, 0, batch_),
          draft_log_probs_.narrow(0, 0, count).view({batch_, num_tokens})};
}

DraftTokens Drafter::run_draft(int64_t num_tokens) {
  DraftTokens draft = draft_buffers(num_tokens);
  reserve(num_tokens - 1);
  const Rows rows{.count = batch_,
                  .batch = batch_,
                  .tokens = indices(rows_.tokens),
                  .positions = indices(rows_.positions),
                  .slots = indices(rows_.slots),
                  .row_offsets = indices(one_row_each_),
                  .cache_starts = indices(rows_.cache_starts),
                  .cache_lengths = indices(rows_.cache_lengths),
                  .token_embeddings = {}};
  last_s_ = kept_s_.narrow(0, 0, batch_);
  last_y_ = kept_y_.narrow(0, 0, batch_);
  for (int64_t step = 0; step < num_tokens; ++step) {
    if (step > 0) {
      forward_.feed(sizes_.norm_output ? last_y_ : last_s_);
      forward_.layers(rows, cache_);
      last_s_ = forward_.s();
      last_y_ = forward_.y();
    }
    last_logits_ = forward_.head(last_y_);
    take_draft_tokens(draft, step);
  }
  return draft;
}

void Drafter::take_draft_tokens(const DraftTokens& draft, int64_t step) {
  const at::Tensor& ids = forward_.weights().target_ids;
  ArgmaxTokensParams argmax{};
  argmax.dtype = dtype_of(last_logits_);
  argmax.logits = last_logits_.const_data_ptr();
  argmax.num_rows = batch_;
  argmax.vocab_size = last_logits_.size(1);
  argmax.logits_stride = last_logits_.stride(0);
  argmax.target_ids = ids.defined() ? ids.const_data_ptr<int64_t>() : nullptr;
  argmax.tokens = chosen_.data_ptr<int64_t>();
  argmax.valid = valid_.data_ptr<bool>();
  argmax.log_probs = chosen_log_probs_.data_ptr<float>();
  argmax.workspace = address_or_null(argmax_workspace_);
  launch<cpu::argmax_tokens, cuda::argmax_tokens>("draft", last_logits_, argmax);

  const DraftRowsParams params{.state = state(),
                               .batch = batch_,
                               .step = step,
                               .num_tokens = draft.tokens.size(1),
                               .chosen = argmax.tokens,
                               .valid = argmax.valid,
                               .chosen_log_probs = argmax.log_probs,
                               .draft_tokens = draft.tokens.data_ptr<int64_t>(),
                               .draft_lengths = draft.lengths.data_ptr<int64_t>(),
                               .log_probs = draft.log_probs.data_ptr<float>(),
                               .tokens = rows_.tokens.data_ptr<int64_t>(),
                               .positions = rows_.positions.data_ptr<int64_t>(),
                               .slots = rows_.slots.data_ptr<int64_t>(),
                               .cache_starts = rows_.cache_starts.data_ptr<int64_t>(),
                               .cache_lengths = rows_.cache_lengths.data_ptr<int64_t>()};
  launch<cpu::draft_rows, cuda::draft_rows>("draft", last_logits_, params);
}

void Drafter::forget(int64_t sequence) {
  extended_.masked_fill_(extended_.eq(sequence), -1);
  if (!ready_ || !can_read_values(extended_)) return;
  const int64_t* extended = extended_.const_data_ptr<int64_t>();
  ready_ = std::any_of(extended, extended + batch_, [](int64_t other) { return other >= 0; });
}

void Drafter::reset(const std::optional<std::vector<int64_t>>& sequences) {
  if (!sequences) {
    lengths_.zero_();
    ready_ = false;
    return;
  }
  for (const int64_t sequence : *sequences) check_sequence(sequence);
  for (const int64_t sequence : *sequences) {
    lengths_[sequence] = 0;
    forget(sequence);
  }
}

void Drafter::truncate(int64_t sequence, int64_t length) {
  check_sequence(sequence);
  const int64_t committed = lengths_[sequence].item<int64_t>();
  TORCH_CHECK_INDEX(length >= 0 && length <= committed, "cannot truncate sequence ", sequence, " to ", length,
                    " rows; it has ", committed);
  if (length == committed) return;
  lengths_[sequence] = length;
  forget(sequence);
}

}  // namespace eagle3
