#include "convert/fusion/distillation.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "core/error.h"
#include "core/hash.h"
#include "core/progress.h"

namespace kvc {
namespace {

constexpr std::int64_t kEvaluations = 20;  // of the held-out sequences, over all steps
constexpr std::int64_t kPatience = 4;      // evaluations without a better one that end it

using Ids = std::vector<std::int64_t>;

struct Split {
  std::vector<Ids> training, held_out;
};

// The last eighth is held out.
Split split_sequences(const TokenSet& tokens) {
  const std::vector<Ids>& all = tokens.sequences;
  KVC_CHECK(all.size() >= 2,
            "distillation needs at least 2 calibration sequences, one of which is held out; raise "
            "--num-sequences");
  const auto count = static_cast<std::ptrdiff_t>(std::max<std::size_t>(1, all.size() / 8));
  return {{all.begin(), all.end() - count}, {all.end() - count, all.end()}};
}

// The training sequence of every draw: each epoch in an order of its own.
std::size_t drawn(std::int64_t draw, std::size_t num_sequences, std::uint64_t seed) {
  const auto count = static_cast<std::int64_t>(num_sequences);
  std::mt19937_64 random(seed + static_cast<std::uint64_t>(draw / count));
  std::vector<std::size_t> order(num_sequences);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = num_sequences; i > 1; --i) {
    std::swap(order[i - 1], order[random() % i]);
  }
  return order[static_cast<std::size_t>(draw % count)];
}

class Distillation {
 public:
  Distillation(ConversionJob& job, FusedFactorMap& factors)
      : job_(job),
        settings_(job.settings.own<FusionSettings>().distill),
        factors_(factors),
        sequences_(split_sequences(job.tokens)),
        model_(job.checkpoint, job.config, job.result.plan),
        evaluate_every_(std::max<std::int64_t>(1, settings_.steps / kEvaluations)) {
    for (auto& [layer, weights] : factors_) {
      for (Fusion* fusion : {&weights.key, &weights.value}) {
        fusion->weight = fusion->weight.detach().clone().set_requires_grad(true);
        add_parameter(fusion->weight, settings_.rate);
      }
    }
    if (settings_.tune_layers) {
      tuned_ = model_.tune_layers();
      for (const TunedWeight& tuned : tuned_) {
        add_parameter(tuned.weight, settings_.tune_rate);
      }
    }
    state_.optimizer = AdamW::of(state_.best);
  }

  Json run() {
    const std::string id =
        sha256_hex(job_.checkpoint.hash() + job_.tokens.hash() + dump_json(to_json(job_.settings)))
            .substr(0, 16);
    if (job_.inputs.state.empty() || !load_state(job_.inputs.state, id, state_)) {
      state_.first_kl = state_.best_kl = held_out();
    } else {
      log_info(fmt::format("distillation resumes after {} steps", state_.step));
    }
    Progress progress("distill", settings_.steps - state_.step);
    while (state_.step < settings_.steps && state_.evaluations_since_best < kPatience) {
      train_step();
      if (state_.step % evaluate_every_ == 0 || state_.step == settings_.steps) {
        keep_best();
        if (!job_.inputs.state.empty()) {
          save_state(job_.inputs.state, id, state_);
        }
      }
      progress.advance();
    }
    return finish();
  }

 private:
  void add_parameter(const at::Tensor& parameter, double rate) {
    state_.parameters.push_back(parameter);
    state_.best.push_back(parameter.detach().clone());
    highest_rates_.push_back(rate);
  }

  // At the step to come.
  std::vector<double> current_rates() const {
    std::vector<double> rates;
    for (const double highest : highest_rates_) {
      rates.push_back(cosine_rate(highest, state_.step, settings_.steps));
    }
    return rates;
  }

  void train_step() {
    const c10::AutoGradMode grad_mode(true);
    for (std::int64_t i = 0; i < settings_.batch_sequences; ++i) {
      const std::size_t sequence = drawn(state_.step * settings_.batch_sequences + i,
                                         sequences_.training.size(), job_.settings.seed);
      (model_.divergence(sequences_.training[sequence], factors_) /
       static_cast<double>(settings_.batch_sequences))
          .backward();
    }
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients, parameters;
    for (const at::Tensor& parameter : state_.parameters) {
      parameters.push_back(parameter.detach());
      gradients.push_back(parameter.grad());
    }
    tie(gradients);
    state_.optimizer.update(parameters, gradients, current_rates(), state_.step + 1);
    for (const at::Tensor& parameter : state_.parameters) {
      parameter.mutable_grad().reset();
    }
    ++state_.step;
  }

  // Both channels of a pair that RoPE turns move as one. Keys come before values, factors before weights.
  void tie(std::vector<at::Tensor>& gradients) const {
    std::size_t index = 0;
    for (const auto& [layer, weights] : factors_) {
      at::Tensor& gradient = gradients[index];
      index += 2;
      if (weights.key.form != FusionForm::kChannel) {
        continue;
      }
      const ChannelPairs pairs = channel_pairs(job_.config, layer);
      const at::Tensor first = pairs.first.narrow(0, 0, pairs.num_turned);
      const at::Tensor second = pairs.second.narrow(0, 0, pairs.num_turned);
      const at::Tensor together =
          gradient.index_select(-1, first) + gradient.index_select(-1, second);
      gradient = gradient.index_copy(-1, first, together).index_copy(-1, second, together);
    }
  }

  double held_out() const {
    const c10::NoGradGuard no_grad;
    double sum = 0, tokens = 0;
    for (const Ids& ids : sequences_.held_out) {
      sum += model_.divergence(ids, factors_).item<double>() * static_cast<double>(ids.size());
      tokens += static_cast<double>(ids.size());
    }
    return sum / tokens;
  }

  void keep_best() {
    const double kl = held_out();
    log_info(
        fmt::format("distillation step {}: held-out KL divergence {:.5f} (before training {:.5f})",
                    state_.step, kl, state_.first_kl));
    if (!(kl < state_.best_kl)) {
      ++state_.evaluations_since_best;
      return;
    }
    state_.best_kl = kl;
    state_.best_step = state_.step;
    state_.evaluations_since_best = 0;
    for (std::size_t i = 0; i < state_.best.size(); ++i) {
      state_.best[i].copy_(state_.parameters[i].detach());
    }
  }

  Json finish() {
    std::size_t index = 0;
    for (auto& [layer, weights] : factors_) {
      weights.key.weight = state_.best[index++];
      weights.value.weight = state_.best[index++];
    }
    for (TunedWeight& tuned : tuned_) {
      tuned.weight = state_.best[index++];
      job_.factors.add(kTunedPrefix, {{tuned.tensor, stored_tensor(job_.checkpoint, tuned)}});
    }
    return {{"steps", state_.step},
            {"best_step", state_.best_step},
            {"held_out_kl_before", state_.first_kl},
            {"held_out_kl_after", state_.best_kl},
            {"held_out_sequences", sequences_.held_out.size()},
            {"tuned_tensors", tuned_.size()}};
  }

  ConversionJob& job_;
  const DistillSettings& settings_;
  FusedFactorMap& factors_;
  Split sequences_;
  FusedForward model_;
  std::int64_t evaluate_every_;
  std::vector<double> highest_rates_;  // of the parameters
  std::vector<TunedWeight> tuned_;
  DistillationState state_;
};

}  // namespace

Json distill(ConversionJob& job, FusedFactorMap& factors) {
  return Distillation(job, factors).run();
}

}  // namespace kvc
