#include "runtime/compression/leaving_codes.h"

#include <algorithm>

#include "runtime/compression/key_forms.h"
#include "runtime/policies/token_policies.h"

namespace kvc {
namespace {

// The oldest exact row that is no sink takes the place of a coded one.
void replace_code(const CodedView& coded, std::int64_t row, CodedStore& store) {
  const std::int64_t oldest = coded.plan.compression.sink_tokens;
  const at::Tensor position = store.positions().exact.rows(oldest, 1, at::kInt).to(at::kLong);
  const std::vector<at::Tensor> z = encode_exact(coded, oldest, position);
  for (std::size_t i = 0; i < z.size(); ++i) {
    store.codes[i].replace(row, z[i][0], coded.block(i).steps);
  }
  for (TokenColumn& column : store.columns) {
    std::copy_n(column.exact.row(oldest), 4, column.codes.mutable_row(row));
  }
}

void erase_exact(CodedStore& store, std::int64_t row) {
  for (KeyValueStore& rows : store.exact) {
    rows.key.erase(row, 1);
    rows.value.erase(row, 1);
  }
  for (TokenColumn& column : store.columns) {
    column.exact.erase(row, 1);
  }
}

// What becomes of the rows: `codes` stay such, `exact` are or become exact, by position.
struct Split {
  at::Tensor codes, exact;  // int64
};

Split split_rows(const KvPlan& plan, const CodedStore& store,
                 const std::vector<std::int64_t>& leaving) {
  const at::Tensor staying = at::tensor(staying_rows(store.num_rows(), leaving), at::kLong);
  const std::int64_t coded = (staying < store.num_codes()).sum().item<std::int64_t>();
  const std::int64_t codes =
      std::min(coded / kTileTokens * kTileTokens, tokens_in_blocks(plan, staying.size(0)));
  const at::Tensor exact = staying.slice(0, codes);
  const at::Tensor order = store.positions().tensor().index_select(0, exact).argsort();
  return {staying.slice(0, 0, codes), exact.index_select(0, order)};
}

// Exact rows of a layer become `rows` of all, which are codes or exact.
void assign_exact(const CodedView& coded, int index, const at::Tensor& rows, CodedStore& store) {
  KeyValueStore& exact = store.exact[static_cast<std::size_t>(index)];
  at::Tensor key = exact.key.rows(exact.key.dtype()), value = exact.value.rows(exact.value.dtype());
  if (const std::int64_t codes = store.num_codes(); codes > 0) {
    const DecodedTokens decoded = decode_tokens(coded, index, 0, codes);
    const at::Tensor turned = key_of_codes(coded.decoder, coded.layer(index), decoded.key,
                                           store.positions().codes.rows(at::kInt).to(at::kLong));
    key = at::cat({turned.to(key.scalar_type()), key});
    value = at::cat({decoded.value.to(value.scalar_type()), value});
  }
  exact.key.truncate(0);
  exact.value.truncate(0);
  exact.append(key.index_select(0, rows), value.index_select(0, rows));
}

void compact(const CodedView& coded, const std::vector<std::int64_t>& leaving, CodedStore& store) {
  const Split split = split_rows(coded.plan, store, leaving);
  for (int index = 0; index < store.layers.num_layers; ++index) {
    assign_exact(coded, index, split.exact, store);
  }
  for (TokenColumn& column : store.columns) {
    const at::Tensor all = column.tensor();
    column.assign(all.index_select(0, split.codes), all.index_select(0, split.exact));
  }
  for (std::size_t i = 0; i < store.codes.size(); ++i) {
    store.codes[i].keep(split.codes, coded.block(i).steps);
  }
}

}  // namespace

void remove_coded_rows(const CodedView& coded, const std::vector<std::int64_t>& rows, bool is_step,
                       CodedStore& store) {
  store.has_left = true;
  const std::int64_t codes = store.num_codes();
  if (!is_step || rows.size() > 1) {
    compact(coded, rows, store);
  } else if (rows.front() < codes) {
    replace_code(coded, rows.front(), store);
    erase_exact(store, coded.plan.compression.sink_tokens);
  } else {
    erase_exact(store, rows.front() - codes);
  }
}

}  // namespace kvc
