#include "drafter.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>

#include "../kernels.h"

namespace eagle3 {
namespace {

constexpr int64_t kChunkRows = 512;  // rows of one layer call in extend: enough for GEMMs, little enough for workspace

at::TensorOptions options_of(const WeightsByName& weights) {
  const auto found = weights.find("embed_tokens.weight");
  TORCH_CHECK_VALUE(found != weights.end(), "the drafter needs embed_tokens.weight, which is missing");
  return found->second.options().requires_grad(false);
}

// The winners of one step and whether their logits were numbers at all.
struct Choice {
  std::vector<int64_t> tokens;
  std::vector<float> log_probs;
  std::unique_ptr<bool[]> valid;  // std::vector<bool> has no bools to point to
};

Choice choose(const at::Tensor& logits, const at::Tensor& target_ids) {
  const int64_t n = logits.size(0);
  Choice choice{std::vector<int64_t>(n), std::vector<float>(n), std::make_unique<bool[]>(n)};
  ArgmaxTokensParams params{};
  params.dtype = dtype_of(logits);
  params.logits = logits.const_data_ptr();
  params.num_rows = n;
  params.vocab_size = logits.size(1);
  params.logits_stride = logits.stride(0);
  params.target_ids = target_ids.defined() ? target_ids.const_data_ptr<int64_t>() : nullptr;
  params.tokens = choice.tokens.data();
  params.valid = choice.valid.get();
  params.log_probs = choice.log_probs.data();
  cpu::argmax_tokens(params);
  return choice;
}

}  // namespace

Drafter::Drafter(const DrafterSizes& sizes, const WeightsByName& weights, int64_t max_batch, int64_t max_length)
    : sizes_(sizes),
      cache_(sizes, max_batch, max_length, options_of(weights)),
      forward_(sizes, DrafterWeights::from_names(sizes, weights),
               std::max(max_batch, std::min(kChunkRows, max_length))),
      kept_s_(at::zeros({max_batch, sizes.hidden_size}, forward_.options())),
      kept_y_(at::zeros_like(kept_s_)),
      kept_position_(max_batch, 0) {}

void Drafter::check_sequence(int64_t sequence) const {
  TORCH_CHECK_INDEX(sequence >= 0 && sequence < cache_.max_batch(), "sequence ", sequence, " is outside [0, ",
                    cache_.max_batch(), "); this drafter was built for max_batch=", cache_.max_batch());
}

void Drafter::check_draft(int64_t num_tokens) const {
  TORCH_CHECK_VALUE(num_tokens >= 1, "num_tokens is ", num_tokens, "; a draft has at least one token");
  TORCH_CHECK_VALUE(ready_, "draft() needs an extend() first: one draft per extend, none after a reset or truncate");
  const int64_t table = forward_.weights().cos_sin.size(0);
  for (const int64_t sequence : extended_) {
    if (sequence < 0) continue;
    const int64_t length = cache_.lengths[sequence] + num_tokens - 1;
    TORCH_CHECK_VALUE(length <= cache_.max_length(), "drafting ", num_tokens, " tokens would grow sequence ", sequence,
                      " to ", length, " rows; this drafter was built for max_length=", cache_.max_length());
    const int64_t position = kept_position_[sequence] + num_tokens - 1;
    TORCH_CHECK_INDEX(position < table, "drafting ", num_tokens, " tokens reaches position ", position,
                      "; the RoPE table covers [0, ", table, ")");
  }
}

DraftTokens Drafter::draft(int64_t num_tokens) {
  const at::NoGradGuard no_grad;
  check_draft(num_tokens);
  ready_ = false;
  const int64_t batch = static_cast<int64_t>(extended_.size());
  DraftTokens draft{at::full({batch, num_tokens}, -1, at::kLong), at::zeros({batch}, at::kLong),
                    at::zeros({batch, num_tokens}, at::kFloat)};
  std::vector<int64_t> active;  // rows of `draft` that have something to draft from
  std::vector<int64_t> sequences;
  int64_t longest = 0;
  for (int64_t b = 0; b < batch; ++b) {
    if (extended_[b] < 0) continue;
    active.push_back(b);
    sequences.push_back(extended_[b]);
    longest = std::max(longest, cache_.lengths[extended_[b]]);
  }
  if (active.empty()) return draft;
  auto token_rows = draft.tokens.accessor<int64_t, 2>();
  auto log_prob_rows = draft.log_probs.accessor<float, 2>();
  int64_t* const lengths = draft.lengths.data_ptr<int64_t>();
  cache_.reserve(longest + num_tokens - 1);

  const at::Tensor index = at::tensor(sequences, at::kLong);
  last_s_ = kept_s_.index_select(0, index);
  last_y_ = kept_y_.index_select(0, index);
  std::vector<int64_t> tokens(active.size());
  for (int64_t i = 0; i < num_tokens; ++i) {
    if (i > 0) step(sequences, tokens, i);
    last_logits_ = forward_.head(last_y_);
    const Choice choice = choose(last_logits_, forward_.weights().target_ids);
    for (size_t r = 0; r < active.size(); ++r) {
      // NaN logits end a sequence's draft: what follows would be drafted from NaN. It is fed padding from here on.
      const bool ended = tokens[r] < 0 || !choice.valid[r];
      tokens[r] = ended ? -1 : choice.tokens[r];
      if (ended) continue;
      token_rows[active[r]][i] = tokens[r];
      log_prob_rows[active[r]][i] = choice.log_probs[r];
      lengths[active[r]] += 1;
    }
  }
  return draft;
}

// One draft step of every sequence, `ahead` rows past its committed ones: s and y from the last step's.
void Drafter::step(const std::vector<int64_t>& sequences, const std::vector<int64_t>& tokens, int64_t ahead) {
  Rows rows;
  for (size_t r = 0; r < sequences.size(); ++r) {
    const int64_t sequence = sequences[r], place = cache_.lengths[sequence] + ahead - 1;
    rows.tokens.push_back(tokens[r]);
    rows.positions.push_back(kept_position_[sequence] + ahead);
    rows.slots.push_back(cache_.slot(sequence, place));
    rows.close_group(cache_.slot(sequence, 0), place + 1);
  }
  forward_.feed(sizes_.norm_output ? last_y_ : last_s_);
  forward_.layer(rows, cache_);
  last_s_ = forward_.s();
  last_y_ = forward_.y();
}

void Drafter::forget(int64_t sequence) {
  std::replace(extended_.begin(), extended_.end(), sequence, int64_t{-1});
  ready_ = ready_ && std::any_of(extended_.begin(), extended_.end(), [](int64_t other) { return other >= 0; });
}

void Drafter::reset(const std::optional<std::vector<int64_t>>& sequences) {
  if (!sequences) {
    std::fill(cache_.lengths.begin(), cache_.lengths.end(), 0);
    extended_.clear();
    ready_ = false;
    return;
  }
  for (const int64_t sequence : *sequences) check_sequence(sequence);
  for (const int64_t sequence : *sequences) {
    cache_.lengths[sequence] = 0;
    forget(sequence);
  }
}

void Drafter::truncate(int64_t sequence, int64_t length) {
  check_sequence(sequence);
  const int64_t committed = cache_.lengths[sequence];
  TORCH_CHECK_INDEX(length >= 0 && length <= committed, "cannot truncate sequence ", sequence, " to ", length,
                    " rows; it has ", committed);
  if (length == committed) return;
  cache_.lengths[sequence] = length;
  forget(sequence);
}

at::Tensor Drafter::lengths() const { return at::tensor(cache_.lengths, at::kLong); }

}  // namespace eagle3
