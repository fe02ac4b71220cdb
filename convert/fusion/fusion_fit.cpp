#include "convert/fusion/fusion_fit.h"

#include <limits>

#include "core/error.h"

namespace kvc {
namespace {

constexpr double kFitDamping = 1e-6;
constexpr double kTiny = 1e-200;  // where all channels are zero

// Normal equations of every channel of every KV head of the layer, channels in pairs.
struct Equations {
  at::Tensor gram;    // [num_kv_heads, 2, head_dim / 2, F, F]
  at::Tensor target;  // [num_kv_heads, 2, head_dim / 2, F]
};

at::Tensor own_heads(const FusionMoments& moments) {
  return at::arange(moments.config().num_kv_heads, at::kLong);
}

// The terms of a real factor: products of the same component. [num_kv_heads, 2, head_dim / 2]
at::Tensor same_component(const at::Tensor& products) {
  return products.diagonal(0, 1, 2).permute({0, 2, 1});
}

Equations channel_equations(const FusionMoments& moments, KvPart part, int layer,
                            const std::vector<int>& sources, const at::Tensor& heads) {
  std::vector<at::Tensor> rows, targets;
  for (std::size_t f = 0; f < sources.size(); ++f) {
    const at::Tensor heads_f = heads[static_cast<std::int64_t>(f)];
    std::vector<at::Tensor> columns;
    for (std::size_t g = 0; g < sources.size(); ++g) {
      columns.push_back(same_component(moments.products(part, sources[f], heads_f, sources[g],
                                                        heads[static_cast<std::int64_t>(g)])));
    }
    rows.push_back(at::stack(columns, -1));
    targets.push_back(
        same_component(moments.products(part, layer, own_heads(moments), sources[f], heads_f)));
  }
  return {at::stack(rows, -2), at::stack(targets, -1)};
}

// A complex factor w = u + i v of a pair z is u z + v (i z), so each source has the two real terms z and i z. One equation
// per pair, with a component axis of size 1. Products m [heads, 2, 2, ...] are those of both components of two pairs a and b.
Equations complex_equations(const FusionMoments& moments, KvPart part, int layer,
                            const std::vector<int>& sources, const at::Tensor& heads) {
  // <a, b>
  const auto real = [](const at::Tensor& m) {
    return m.select(1, 0).select(1, 0) + m.select(1, 1).select(1, 1);
  };
  // <a, i b> with i b = (-b_second, b_first)
  const auto turned = [](const at::Tensor& m) {
    return m.select(1, 1).select(1, 0) - m.select(1, 0).select(1, 1);
  };
  std::vector<at::Tensor> rows, targets;
  for (std::size_t f = 0; f < sources.size(); ++f) {
    const at::Tensor heads_f = heads[static_cast<std::int64_t>(f)];
    std::vector<at::Tensor> plain, rotated;
    for (std::size_t g = 0; g < sources.size(); ++g) {
      const at::Tensor m = moments.products(part, sources[f], heads_f, sources[g],
                                            heads[static_cast<std::int64_t>(g)]);
      plain.insert(plain.end(), {real(m), turned(m)});
      rotated.insert(rotated.end(), {-turned(m), real(m)});
    }
    rows.push_back(at::stack(plain, -1));
    rows.push_back(at::stack(rotated, -1));
    const at::Tensor m = moments.products(part, layer, own_heads(moments), sources[f], heads_f);
    targets.insert(targets.end(), {real(m), turned(m)});
  }
  return {at::stack(rows, -2).unsqueeze(1), at::stack(targets, -1).unsqueeze(1)};
}

at::Tensor solve(const Equations& equations) {
  const std::int64_t unknowns = equations.target.size(-1);
  const at::Tensor trace = equations.gram.diagonal(0, -2, -1).sum(-1, true).unsqueeze(-1);
  const at::Tensor damping = at::eye(unknowns, at::kDouble) *
                             (trace * (kFitDamping / static_cast<double>(unknowns)) + kTiny);
  return at::linalg_solve(equations.gram + damping, equations.target.unsqueeze(-1)).squeeze(-1);
}

// a^T G a - 2 a^T b, to which the layer's own squares are added. [num_kv_heads]
at::Tensor error_terms(const Equations& equations, const at::Tensor& factors) {
  const at::Tensor fitted =
      at::matmul(equations.gram, factors.unsqueeze(-1)).squeeze(-1) - 2 * equations.target;
  return (factors * fitted).flatten(1).sum(1);
}

double r2_of(const FusionMoments& moments, KvPart part, int layer, const at::Tensor& terms) {
  const ChannelSums& sums = moments.sums(part, layer);
  const double squares = sums.squares.sum().item<double>();
  const double about_means =
      squares - sums.sum.square().sum().item<double>() / static_cast<double>(moments.num_tokens());
  return about_means > 0 ? 1 - (squares + terms.sum().item<double>()) / about_means
                         : -std::numeric_limits<double>::infinity();
}

// Factors in pairs [num_kv_heads, 2, head_dim / 2, F] as channels [F, num_kv_heads, head_dim].
at::Tensor in_channels(const at::Tensor& factors, const ChannelPairs& pairs) {
  const at::Tensor order = at::argsort(at::cat({pairs.first, pairs.second}));
  return factors.permute({3, 0, 1, 2}).flatten(2).index_select(-1, order).contiguous();
}

// Both components of a pair that RoPE turns get the factor that fits them together.
at::Tensor tied_factors(const Equations& equations, const ChannelPairs& pairs, KvPart part) {
  const at::Tensor apart = solve(equations);
  if (part == KvPart::kValue || pairs.num_turned == 0) {
    return apart;
  }
  const Equations together{equations.gram.sum(1, true), equations.target.sum(1, true)};
  const at::Tensor turned =
      (at::arange(pairs.first.size(0)) < pairs.num_turned).view({1, 1, -1, 1});
  return at::where(turned, solve(together).expand_as(apart), apart);
}

// The best factors for these heads, and their error terms.
struct HeadFit {
  at::Tensor factors, terms;
};

bool is_complex(KvPart part, FusionForm form) {
  return part == KvPart::kKey && form == FusionForm::kComplex;
}

HeadFit solve_heads(const FusionMoments& moments, KvPart part, int layer,
                    const std::vector<int>& sources, FusionForm form, const at::Tensor& heads) {
  const bool complex = is_complex(part, form);
  const Equations equations =
      (complex ? complex_equations : channel_equations)(moments, part, layer, sources, heads);
  const at::Tensor factors =
      complex ? solve(equations)
              : tied_factors(equations, channel_pairs(moments.config(), layer), part);
  return {factors, error_terms(equations, factors)};
}

FusionFit fit_heads(const FusionMoments& moments, KvPart part, int layer,
                    const std::vector<int>& sources, FusionForm form, const at::Tensor& heads) {
  const auto [factors, terms] = solve_heads(moments, part, layer, sources, form, heads);
  const at::Tensor weight = is_complex(part, form)
                                ? factors.squeeze(1)
                                      .unflatten(-1, {static_cast<std::int64_t>(sources.size()), 2})
                                      .permute({2, 3, 0, 1})
                                      .contiguous()
                                : in_channels(factors, channel_pairs(moments.config(), layer));
  return {.sources = sources,
          .heads = heads,
          .weight = weight,
          .r2 = r2_of(moments, part, layer, terms)};
}

// For every KV head of the layer the head of each source that fits it best, all combinations tried: their
// squared errors come from fits in which every head reads the same numbers.
at::Tensor search_heads(const FusionMoments& moments, KvPart part, int layer,
                        const std::vector<int>& sources, FusionForm form) {
  const std::int64_t kv_heads = moments.config().num_kv_heads;
  const auto num_sources = static_cast<std::int64_t>(sources.size());
  std::int64_t combinations = 1;
  for (std::int64_t i = 0; i < num_sources; ++i) {
    combinations *= kv_heads;
  }
  at::Tensor best = at::full({kv_heads}, std::numeric_limits<double>::infinity(), at::kDouble);
  at::Tensor heads = at::zeros({num_sources, kv_heads}, at::kLong);
  for (std::int64_t combination = 0; combination < combinations; ++combination) {
    at::Tensor tried = at::empty({num_sources, kv_heads}, at::kLong);
    for (std::int64_t f = 0, rest = combination; f < num_sources; ++f, rest /= kv_heads) {
      tried[f].fill_(rest % kv_heads);
    }
    const at::Tensor errors = solve_heads(moments, part, layer, sources, form, tried).terms;
    const at::Tensor better = errors < best;
    best = at::where(better, errors, best);
    heads = at::where(better, tried, heads);
  }
  return heads;
}

}  // namespace

FusionFit fit_vectors(const FusionMoments& moments, KvPart part, int layer,
                      const std::vector<int>& sources, FusionForm form, HeadMap head_map) {
  const at::Tensor heads =
      head_map == HeadMap::kSearch
          ? search_heads(moments, part, layer, sources, form)
          : own_heads(moments).expand({static_cast<std::int64_t>(sources.size()), -1});
  return fit_heads(moments, part, layer, sources, form, heads);
}

FusionFit search_sources(const FusionMoments& moments, KvPart part, int layer,
                         const std::vector<int>& candidates, FusionForm form, HeadMap head_map) {
  FusionFit best;
  best.r2 = -std::numeric_limits<double>::infinity();
  if (candidates.size() == 1) {
    return fit_vectors(moments, part, layer, candidates, form, head_map);
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    for (std::size_t j = i + 1; j < candidates.size(); ++j) {
      FusionFit fit =
          fit_vectors(moments, part, layer, {candidates[i], candidates[j]}, form, HeadMap::kSame);
      if (fit.r2 > best.r2 || best.sources.empty()) {
        best = std::move(fit);
      }
    }
  }
  return head_map == HeadMap::kSame
             ? best
             : fit_vectors(moments, part, layer, best.sources, form, head_map);
}

FusionFit fit_ones(const FusionMoments& moments, KvPart part, int layer,
                   const std::vector<int>& sources) {
  const auto count = static_cast<std::int64_t>(sources.size());
  FusionFit fit{
      .sources = sources,
      .heads = own_heads(moments).expand({count, -1}),
      .weight =
          at::ones({count, moments.config().num_kv_heads, moments.config().head_dim}, at::kDouble)};
  const Equations equations = channel_equations(moments, part, layer, sources, fit.heads);
  fit.r2 = r2_of(moments, part, layer, error_terms(equations, at::ones_like(equations.target)));
  return fit;
}

FusionFit fit_matrices(const FusionMoments& moments, KvPart part, int layer,
                       const std::vector<int>& sources) {
  std::vector<at::Tensor> rows, targets;
  for (const int a : sources) {
    std::vector<at::Tensor> columns;
    for (const int b : sources) {
      columns.push_back(moments.matrix(part, a, b));
    }
    rows.push_back(at::cat(columns, 1));
    targets.push_back(moments.matrix(part, a, layer));
  }
  const at::Tensor gram = at::cat(rows), target = at::cat(targets);  // [S, S], [S, kv_dim]
  const at::Tensor damped = gram + at::eye(gram.size(0), at::kDouble) *
                                       (gram.trace() * kFitDamping / gram.size(0) + kTiny);
  const at::Tensor weight = at::cholesky_solve(target, at::linalg_cholesky(damped));
  const at::Tensor terms = weight * (at::mm(gram, weight) - 2 * target);
  return {.sources = sources,
          .heads = {},
          .weight = weight.t().contiguous(),
          .r2 = r2_of(moments, part, layer, terms)};
}

}  // namespace kvc
