#include "convert/principal/principal_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "convert/factor_choice.h"
#include "convert/latent/latent_conversion.h"
#include "convert/latent/latent_plan.h"
#include "convert/plan.h"
#include "convert/run_statistics.h"
#include "core/kv_plan.h"
#include "core/progress.h"

namespace kvc {
namespace {

constexpr std::int64_t kMostOfUniform = 3;  // bases are kept up to so many times their uniform rank

enum class Part { kKey, kValue, kJoint };

// Directions of a group's keys, of its values or of both.
struct PartBasis {
  Part part;
  std::int64_t rank = 0, cap = 0;  // cap: directions at hand
  std::vector<double> eigenvalues;
  at::Tensor encoder, decoder;  // float32
  BasisNoise noise;             // of the directions at hand
  at::Tensor variance;          // [n] float64, of every channel
  double energy = 0;            // what the metric sees of all variance
};

struct GroupBases {
  at::Tensor mean;               // [num_layers * (key and value widths)] float64
  double coefficient_bytes = 0;  // in the cache of the tokens in flight, and in factors
  std::vector<PartBasis> parts;
};

// Rows of a group's stacked y that a part has. [n] int64
at::Tensor rows_of(Part part, const LatentGroup& group, const KvWidths& widths) {
  const at::Tensor all = at::arange(group.num_layers * widths.total(), at::kLong);
  if (part == Part::kJoint) {
    return all;
  }
  const at::Tensor layers = all.view({group.num_layers, widths.total()});
  return (part == Part::kKey ? layers.narrow(1, 0, widths.key)
                             : layers.narrow(1, widths.key, widths.value))
      .flatten();
}

PartBasis make_basis(const ConversionJob& job, const LatentGroup& group, Part part,
                     const RunStatistics& statistics) {
  const at::Tensor rows = rows_of(part, group, grouped_widths(job.result.plan));
  const auto own_part = [&](const at::Tensor& matrix) {
    return matrix.index_select(0, rows).index_select(1, rows);
  };
  const at::Tensor own = own_part(statistics.covariance);
  const at::Tensor metric =
      statistics.metric.defined()
          ? damped_cache_metric(own_part(statistics.metric), job.config.kv_dim())
          : at::Tensor();
  const std::int64_t n = rows.size(0);
  PartBasis basis{
      .part = part, .eigenvalues = {}, .encoder = {}, .decoder = {}, .noise = {}, .variance = {}};
  basis.rank = part == Part::kJoint ? group.rank
               : part == Part::kKey ? group.key_rank
                                    : group.value_rank;
  const bool shared = job.settings.own<RankSettings>().allocation == RankAllocation::kEnergy;
  basis.cap = std::min(n, shared ? kMostOfUniform * basis.rank : basis.rank);
  const PrincipalBasis found = principal_basis(own, metric, basis.cap, job.device);
  const double* values = found.eigenvalues.const_data_ptr<double>();
  basis.eigenvalues.assign(values, values + n);
  basis.encoder = found.encoder.to(at::kFloat);
  basis.decoder = found.decoder.to(at::kFloat);
  basis.noise = basis_noise(basis.encoder, basis.decoder, found.eigenvalues.narrow(0, 0, basis.cap),
                            own, metric, job.device);
  basis.variance = own.diagonal().clone();
  basis.energy = (metric.defined() ? (metric * own).sum() : basis.variance.sum()).item<double>();
  return basis;
}

// What one more coefficient per token of a group takes: in the cache, and as rows of its factors.
double coefficient_bytes(const ConversionJob& job, int group) {
  const KvPlan& plan = job.result.plan;
  const std::int64_t rank = plan.groups[static_cast<std::size_t>(group)].rank;
  const std::int64_t factors = estimated_group_bytes(plan, group, job.config, job.settings);
  const std::int64_t token =
      token_bytes(plan, group, planned_dtype(job.config, job.settings)).merged;
  return static_cast<double>(token * tokens_in_flight(job.config, job.settings) + factors) /
         static_cast<double>(rank);
}

std::vector<GroupBases> find_bases(const ConversionJob& job) {
  Progress progress("principal directions",
                    static_cast<std::int64_t>(job.result.plan.groups.size()));
  std::vector<GroupBases> bases;
  for (const LatentGroup& group : job.result.plan.groups) {
    const RunStatistics statistics =
        read_run_statistics(job, {group.first_layer, group.num_layers}, *job.settings.cache_metric);
    GroupBases& own = bases.emplace_back();
    own.mean = statistics.mean;
    own.coefficient_bytes = coefficient_bytes(job, static_cast<int>(bases.size()) - 1);
    for (const Part part :
         group.split_kv ? std::vector{Part::kKey, Part::kValue} : std::vector{Part::kJoint}) {
      own.parts.push_back(make_basis(job, group, part, statistics));
    }
    progress.advance();
  }
  return bases;
}

// Bases of one kind compete: without a metric, errors of keys and of values do not compare.
void share_ranks(const ConversionJob& job, Part part, std::vector<GroupBases>& bases) {
  std::vector<PartBasis*> own;
  std::vector<std::vector<double>> eigenvalues;
  std::vector<std::int64_t> caps;
  std::vector<double> bytes;
  std::int64_t total = 0;
  for (GroupBases& group : bases) {
    for (PartBasis& basis : group.parts) {
      if (basis.part == part) {
        own.push_back(&basis);
        eigenvalues.push_back(basis.eigenvalues);
        caps.push_back(basis.cap);
        bytes.push_back(group.coefficient_bytes);
        total += basis.rank;
      }
    }
  }
  const std::vector<std::int64_t> ranks = allocate_by_energy(
      eigenvalues, total, caps, principal_rank_multiple(job.config, job.settings), bytes);
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i]->rank = ranks[i];
  }
}

void set_ranks(LatentGroup& group, const GroupBases& bases) {
  group.rank = 0;
  for (const PartBasis& basis : bases.parts) {
    group.rank += basis.rank;
    if (basis.part != Part::kJoint) {
      (basis.part == Part::kKey ? group.key_rank : group.value_rank) = basis.rank;
    }
  }
}

// With C E^T = F diag(lambda), what is lost has covariance C - F diag(lambda) F^T.
void add_report(const LatentGroup& group, const KvWidths& widths, const GroupBases& bases,
                GroupReport& report) {
  at::Tensor lost = at::zeros_like(bases.mean), energy = bases.mean.square();
  double kept = 0, total = 0;
  for (const PartBasis& basis : bases.parts) {
    const at::Tensor rows = rows_of(basis.part, group, widths);
    const at::Tensor values =
        at::tensor(at::ArrayRef<double>(basis.eigenvalues)).narrow(0, 0, basis.rank);
    const at::Tensor captured =
        basis.decoder.narrow(1, 0, basis.rank).to(at::kDouble).square().matmul(values);
    lost.index_copy_(0, rows, (basis.variance - captured).clamp_min(0));
    energy.index_add_(0, rows, basis.variance);
    kept += values.sum().item<double>();
    const double sum = std::accumulate(basis.eigenvalues.begin(), basis.eigenvalues.end(), 0.0);
    total += sum;
    report.optimum_error = std::max(
        report.optimum_error, basis.energy > 0 ? std::abs(sum - basis.energy) / basis.energy : 0);
    for (std::int64_t i = 0; i < basis.rank; ++i) {
      report.singular_values.push_back(std::sqrt(basis.eigenvalues[static_cast<std::size_t>(i)]));
    }
  }
  const auto relative = [&](Part part) {
    const at::Tensor rows = rows_of(part, group, widths);
    const double of = energy.index_select(0, rows).sum().item<double>();
    return of > 0 ? std::sqrt(lost.index_select(0, rows).sum().item<double>() / of) : 0;
  };
  report.rank = group.rank;
  report.energy_kept = total > 0 ? kept / total : 1;
  report.key_error = report.merged_key_error = relative(Part::kKey);
  report.value_error = report.merged_value_error = relative(Part::kValue);
}

NamedTensors tensors_of(const GroupBases& bases) {
  NamedTensors tensors;
  tensors.emplace_back("mean", bases.mean.to(at::kFloat).contiguous());
  for (const PartBasis& basis : bases.parts) {
    const std::string prefix = basis.part == Part::kJoint ? ""
                               : basis.part == Part::kKey ? "key."
                                                          : "value.";
    tensors.emplace_back(prefix + "encoder", basis.encoder.narrow(0, 0, basis.rank).contiguous());
    tensors.emplace_back(prefix + "reconstruct_proj",
                         basis.decoder.narrow(1, 0, basis.rank).contiguous());
    const double dropped =
        std::accumulate(basis.eigenvalues.begin() + basis.rank, basis.eigenvalues.end(), 0.0);
    const PairChoice choice = choose_pair(basis.noise, basis.rank, dropped);
    add_choice(tensors, prefix + "encoder", choice.encoder);
    add_choice(tensors, prefix + "reconstruct_proj", choice.decoder);
  }
  return tensors;
}

}  // namespace

void convert_principal_groups(ConversionJob& job) {
  std::vector<GroupBases> bases = find_bases(job);
  if (job.settings.own<RankSettings>().allocation == RankAllocation::kEnergy) {
    for (const Part part : {Part::kKey, Part::kValue, Part::kJoint}) {
      share_ranks(job, part, bases);
    }
  }
  std::vector<GroupReport>& reports = job.result.report;
  for (std::size_t i = 0; i < bases.size(); ++i) {
    LatentGroup& group = job.result.plan.groups[i];
    set_ranks(group, bases[i]);
    job.factors.add(tensors_of(bases[i]));
    add_report(group, grouped_widths(job.result.plan), bases[i], reports.emplace_back());
    complete_report(reports.back(), job.result.plan, static_cast<int>(i),
                    planned_dtype(job.config, job.settings));
  }
}

void report_request_groups(ConversionJob& job) {
  std::vector<GroupReport>& reports = job.result.report;
  for (std::size_t i = 0; i < job.result.plan.groups.size(); ++i) {
    reports.emplace_back().rank = job.result.plan.groups[i].rank;
    complete_report(reports.back(), job.result.plan, static_cast<int>(i),
                    planned_dtype(job.config, job.settings));
  }
}

}  // namespace kvc
