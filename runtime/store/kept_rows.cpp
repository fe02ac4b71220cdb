#include "runtime/store/kept_rows.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "runtime/kernels/kv_element.h"

namespace kvc {
namespace {

// Rows `indices` [n] or [n, num_kv_heads] of x [rows, num_kv_heads or 1, ...].
at::Tensor select(const at::Tensor& x, const at::Tensor& indices) {
  if (indices.dim() == 1) {
    return x.index_select(0, indices);
  }
  at::Tensor index = indices;
  std::vector<std::int64_t> shape = indices.sizes().vec();
  for (std::int64_t axis = 2; axis < x.dim(); ++axis) {
    index = index.unsqueeze(-1);
    shape.push_back(x.size(axis));
  }
  return x.gather(0, index.expand(shape));
}

// Number `index` and those behind it, `bytes` in all, of one row to another.
void copy_numbers(RowStore& rows, std::int64_t from, std::int64_t to, std::int64_t first_byte,
                  std::int64_t bytes) {
  std::byte* target = rows.mutable_row(to) + first_byte;
  std::memcpy(target, rows.row(from) + first_byte, static_cast<std::size_t>(bytes));
}

}  // namespace

KeptColumns kept_columns(const TokenPolicy& policy) {
  return {.per_head = !policy.keeps_last(),
          .scores = policy.has_scores(),
          .changes = policy.is_running(),
          .residual_slots = policy.residual_slots};
}

KeptColumns kept_columns(const TokenPolicy& policy, const SharingLayers& sharing, int layer) {
  KeptColumns columns = kept_columns(policy);
  columns.per_head = columns.per_head && !sharing.shares_heads;
  columns.follows = layer != sharing.storage.front();
  columns.scores = columns.scores && !columns.follows;
  return columns;
}

KeptRows::KeptRows(const KvPlan& plan, const StoreOptions& options, const KeptColumns& columns)
    : num_kv_heads_(plan.num_kv_heads),
      head_dim_(plan.head_dim),
      per_head_(columns.per_head),
      changes_(columns.changes),
      store_(plain_store(plan, options)),
      residual_(options.pool, columns.residual_slots, num_kv_heads_, head_dim_, head_dim_) {
  if (!columns.follows) {
    positions_.emplace(options.pool, RowFormat{.shape = {heads()}, .dtype = at::kInt});
  }
  if (columns.scores) {
    scores_.emplace(options.pool, RowFormat{.shape = {heads()}, .dtype = at::kFloat});
  }
}

std::int64_t KeptRows::bytes() const {
  return store_.bytes() + (positions_ ? positions_->bytes() : 0) +
         (scores_ ? scores_->bytes() : 0) + residual_.bytes();
}

KeptTokens KeptRows::tokens() const {
  return {.rows = num_rows(),
          .reserved_rows = reserved_rows_,
          .has_left = has_left_,
          .codes = store_.num_codes(),
          .residual_slots = residual_.empty() ? 0 : residual_.num_slots(),
          .shares_heads = !per_head_,
          .follows = !positions_};
}

void KeptRows::append(const at::Tensor& key, const at::Tensor& value, const at::Tensor& positions) {
  const auto* position = positions.const_data_ptr<std::int64_t>();
  const std::int64_t first = num_rows(), count = positions.size(0);
  store_.append(key, value);
  if (positions_) {
    positions_->grow(count);
    for (std::int64_t i = 0; i < count; ++i) {
      std::fill_n(reinterpret_cast<std::int32_t*>(positions_->mutable_row(first + i)), heads(),
                  static_cast<std::int32_t>(position[i]));
    }
  }
  if (scores_) {
    scores_->grow(count);
    for (std::int64_t i = 0; i < count; ++i) {
      std::fill_n(reinterpret_cast<float*>(scores_->mutable_row(first + i)), heads(), 0.0f);
    }
  }
}

at::Tensor KeptRows::in_order(const RowStore& exact, const at::Tensor& codes) const {
  const at::Tensor rows = exact.rows(at::kFloat);
  return at::cat({rows.narrow(0, 0, rows_before_codes_), codes, rows.slice(0, rows_before_codes_)});
}

at::Tensor KeptRows::keys(const TurnKeys& turn) const {
  if (store_.num_codes() == 0) {
    return store_.key.rows(store_.key.dtype());
  }
  const at::Tensor codes = store_.key_codes->rows(at::kFloat);
  const auto positions = [&] {
    return at::arange(rows_before_codes_, rows_before_codes_ + codes.size(0), at::kLong);
  };
  return in_order(store_.key, has_left_ ? codes : turn(codes, positions()));
}

at::Tensor KeptRows::values() const {
  return store_.num_codes() == 0 ? store_.value.rows(store_.value.dtype())
                                 : in_order(store_.value, store_.value_codes->rows(at::kFloat));
}

KeptContent KeptRows::content(const TurnKeys& turn) const {
  return {.key = keys(turn).to(at::kFloat),
          .value = values().to(at::kFloat),
          .positions = positions_ ? positions() : at::Tensor(),
          .scores = scores_ ? scores() : at::Tensor()};
}

void KeptRows::assign(const KeptContent& content) {
  truncate(0);
  if (changes_ && store_.key_codes) {
    store_.code_rows_apart();
  }
  store_.append(content.key, content.value);
  if (positions_) {
    positions_->append(content.positions.to(at::kInt));
  }
  if (scores_) {
    scores_->append(content.scores);
  }
}

void KeptRows::keep(const at::Tensor& indices, const TurnKeys& turn) {
  KeptContent kept{.key = select(keys(turn), indices),
                   .value = select(values(), indices),
                   .positions = positions_ ? select(positions(), indices) : at::Tensor(),
                   .scores = scores_ ? select(scores(), indices) : at::Tensor()};
  has_left_ = true;
  assign(kept);
}

void KeptRows::quantise(std::int64_t first, std::int64_t count, const TurnKeys& turn_back) {
  if (!store_.key_codes || count == 0) {
    return;
  }
  rows_before_codes_ = first;
  const std::int64_t next = first + store_.num_codes();  // of all tokens, while none has left
  store_.quantise(first, count, [&](const at::Tensor& key, std::int64_t offset) {
    return has_left_
               ? key
               : turn_back(key, at::arange(next + offset, next + offset + key.size(0), at::kLong));
  });
}

void KeptRows::code(std::int64_t first, std::int64_t count) {
  rows_before_codes_ = first;
  if (store_.key_codes) {
    store_.quantise(first, count, [](const at::Tensor& key, std::int64_t) { return key; });
  }
}

std::int32_t KeptRows::position(std::int64_t row, std::int64_t kv_head) const {
  return load_as<std::int32_t>(positions_->row(row), per_head_ ? kv_head : 0);
}

float KeptRows::score(std::int64_t row, std::int64_t kv_head) const {
  return load_as<float>(scores_->row(row), per_head_ ? kv_head : 0);
}

void KeptRows::set_scores(const at::Tensor& scores) {
  scores_->truncate(0);
  scores_->append(scores);
}

std::vector<float*> KeptRows::score_blocks() {
  std::vector<float*> blocks;
  for (std::int64_t row = 0; row < num_rows(); row += page()) {
    blocks.push_back(reinterpret_cast<float*>(scores_->mutable_row(row)));
  }
  return blocks;
}

std::int64_t KeptRows::least_row(std::int64_t first, std::int64_t last, std::int64_t least,
                                 std::int64_t kv_head) const {
  float least_score = score(least, kv_head);
  for (std::int64_t row = first; row < last;) {
    const auto* scores =
        reinterpret_cast<const float*>(scores_->row(row)) + (per_head_ ? kv_head : 0);
    for (const std::int64_t end = std::min(last, row + page() - row % page()); row < end;
         ++row, scores += heads()) {
      if (*scores < least_score ||
          (*scores == least_score && position(row, kv_head) < position(least, kv_head))) {
        least = row;
        least_score = *scores;
      }
    }
  }
  return least;
}

void KeptRows::read(std::int64_t row, std::int64_t kv_head, float* key, float* value) const {
  const bool coded = is_code(row);
  (coded ? *store_.key_codes : store_.key).read_head(place(row), kv_head, key);
  (coded ? *store_.value_codes : store_.value).read_head(place(row), kv_head, value);
}

void KeptRows::write(std::int64_t row, std::int64_t kv_head, const float* key, const float* value) {
  const bool coded = is_code(row);
  (coded ? *store_.key_codes : store_.key).write_head(place(row), kv_head, key);
  (coded ? *store_.value_codes : store_.value).write_head(place(row), kv_head, value);
}

void KeptRows::copy_columns(std::int64_t from, std::int64_t to, std::int64_t kv_head) {
  for (std::optional<RowStore>* column : {&positions_, &scores_}) {
    if (*column && (per_head_ || kv_head == 0)) {
      copy_numbers(**column, from, to, 4 * kv_head, 4);
    }
  }
}

void KeptRows::copy(std::int64_t from, std::int64_t to, std::int64_t kv_head) {
  for (RowStore* rows : {&store_.key, &store_.value}) {
    const std::int64_t bytes =
        head_dim_ * static_cast<std::int64_t>(c10::elementSize(rows->dtype()));
    copy_numbers(*rows, place(from), place(to), kv_head * bytes, bytes);
  }
  copy_columns(from, to, kv_head);
}

void KeptRows::truncate(std::int64_t rows) {
  if (rows == 0 && store_.key_codes) {
    store_.key_codes->truncate(0);
    store_.value_codes->truncate(0);
  }
  const std::int64_t exact = rows - store_.num_codes();
  KVC_CHECK(exact >= 0, "KV cache: rows from {} on cannot be removed, they are codes", rows);
  store_.key.truncate(exact);
  store_.value.truncate(exact);
  for (std::optional<RowStore>* column : {&positions_, &scores_}) {
    if (*column) {
      (*column)->truncate(rows);
    }
  }
}

void KeptRows::reserve(std::int64_t rows) {
  reserved_rows_ = rows;
  store_.key.reserve(rows - store_.num_codes());
  store_.value.reserve(rows - store_.num_codes());
  for (std::optional<RowStore>* column : {&positions_, &scores_}) {
    if (*column) {
      (*column)->reserve(rows);
    }
  }
}

}  // namespace kvc
