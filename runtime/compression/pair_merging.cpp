#include "runtime/compression/pair_merging.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "runtime/store/row_store.h"

namespace kvc {
namespace {

constexpr double kLeastSine = 1e-4;  // below, directions are interpolated linearly

at::Tensor norm_of(const at::Tensor& x) { return x.square().sum(-1, true).sqrt(); }

// Unit vectors; zero ones stay zero.
at::Tensor direction_of(const at::Tensor& x) {
  const at::Tensor norm = norm_of(x);
  return x / at::where(norm > 0, norm, at::ones_like(norm));
}

// Both directions; a zero vector's is the other's.
std::pair<at::Tensor, at::Tensor> directions_of(const at::Tensor& lower, const at::Tensor& upper) {
  const at::Tensor first = direction_of(lower), second = direction_of(upper);
  const auto is_zero = [](const at::Tensor& x) { return x.eq(0).all(-1, true); };
  return {at::where(is_zero(first), second, first), at::where(is_zero(second), first, second)};
}

// For unit vectors. [..., 1]
at::Tensor unit_angle(const at::Tensor& first, const at::Tensor& second) {
  return 2 * at::atan2(norm_of(first - second), norm_of(first + second));
}

// Keys or values of the tokens of one pair that are to be merged.
class PairMerge {
 public:
  PairMerge(const PairedLayers& rule, const RowStore& lower, const RowStore& upper,
            std::int64_t count)
      : rule_(rule),
        lower_(lower),
        upper_(upper),
        first_(lower.num_rows() - count),
        count_(count) {}

  void append_to(PairedRows& rows) const {
    const at::Tensor retained = retained_tokens(rule_, token_angles());
    const std::int64_t first_row = rows.num_rows();
    in_chunks([&](const at::Tensor& lower, const at::Tensor& upper) {
      rows.direction.append(interpolate(lower, upper, rule_.position));
      rows.norms.append(at::stack({norm_of(lower), norm_of(upper)}, 1).squeeze(-1));
    });
    std::int64_t offset = 0;
    in_chunks([&](const at::Tensor& lower, const at::Tensor& upper) {
      const at::Tensor own = retained.masked_select(
          retained.ge(offset).logical_and(retained.lt(offset + lower.size(0))));
      const at::Tensor index = own - offset;
      rows.retained.append(
          at::stack({lower.index_select(0, index), upper.index_select(0, index)}, 1));
      rows.retained_rows.append((own + first_row).to(at::kInt));
      offset += lower.size(0);
    });
  }

 private:
  using Visitor = std::function<void(const at::Tensor& lower, const at::Tensor& upper)>;

  // Vectors of both layers, [n, num_kv_heads, head_dim] float32, some tokens at a time.
  void in_chunks(const Visitor& visit) const {
    for (std::int64_t done = 0; done < count_; done += kChunkTokens) {
      const std::int64_t count = std::min(kChunkTokens, count_ - done);
      visit(lower_.rows(first_ + done, count, at::kFloat),
            upper_.rows(first_ + done, count, at::kFloat));
    }
  }

  at::Tensor token_angles() const {
    std::vector<at::Tensor> angles;
    in_chunks([&angles](const at::Tensor& lower, const at::Tensor& upper) {
      angles.push_back(angle_between(lower, upper).mean(-1));
    });
    return at::cat(angles);
  }

  const PairedLayers& rule_;
  const RowStore &lower_, &upper_;
  std::int64_t first_, count_;
};

}  // namespace

at::Tensor angle_between(const at::Tensor& lower, const at::Tensor& upper) {
  const auto [first, second] = directions_of(lower, upper);
  return unit_angle(first, second).squeeze(-1);
}

at::Tensor interpolate(const at::Tensor& lower, const at::Tensor& upper, double position) {
  const auto [first, second] = directions_of(lower, upper);
  const at::Tensor angle = unit_angle(first, second), sine = angle.sin();
  const at::Tensor divisor = at::where(sine < kLeastSine, at::ones_like(sine), sine);
  const at::Tensor spherical =
      (((1 - position) * angle).sin() * first + (position * angle).sin() * second) / divisor;
  const at::Tensor linear = (1 - position) * first + position * second;
  // Nothing is left halfway between opposite directions.
  const at::Tensor mixed = at::where(sine < kLeastSine, linear, spherical);
  return direction_of(at::where(norm_of(mixed) < kLeastSine, second, mixed));
}

at::Tensor retained_tokens(const PairedLayers& rule, const at::Tensor& angles) {
  const at::Tensor distance = rule.retains_similar ? -angles : angles;
  const at::Tensor farthest = distance.max(), nearest = distance.min();
  const std::int64_t most = std::min(
      rule.most_retained(angles.size(0)),
      (distance > farthest - rule.retained * (farthest - nearest)).sum().item<std::int64_t>());
  const at::Tensor order =
      std::get<1>(distance.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  return std::get<0>(order.narrow(0, 0, most).sort());
}

void merge_pair(const PairedLayers& rule, std::int64_t first, PairStore& pair) {
  const std::int64_t own = pair.exact_positions(0).ge(first).sum().item<std::int64_t>();
  if (own == 0) {
    return;
  }
  PairMerge(rule, pair.exact[0].key, pair.exact[1].key, own).append_to(pair.key);
  PairMerge(rule, pair.exact[0].value, pair.exact[1].value, own).append_to(pair.value);
  pair.drop_exact(own);
}

at::Tensor restored_rows(const PairedRows& rows, std::int64_t index, std::int64_t first,
                         std::int64_t count, at::ScalarType dtype) {
  const at::Tensor norms = rows.norms.rows(first, count, at::kFloat).select(1, index).unsqueeze(-1);
  at::Tensor restored = rows.direction.rows(first, count, at::kFloat).mul_(norms).to(dtype);
  const at::Tensor retained = rows.retained_rows.rows(at::kInt);
  const auto* begin = retained.const_data_ptr<std::int32_t>();
  const auto place = [&](std::int64_t row) {
    return std::lower_bound(begin, begin + retained.size(0), row) - begin;
  };
  const std::int64_t first_retained = place(first), num = place(first + count) - first_retained;
  if (num > 0) {
    restored.index_copy_(0, retained.narrow(0, first_retained, num).to(at::kLong) - first,
                         rows.retained.rows(first_retained, num, dtype).select(1, index));
  }
  return restored;
}

}  // namespace kvc
