#include "convert/coded/form_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvc {
namespace {

double bits_at(const std::vector<double>& variances, double level) {
  double bits = 0;
  for (const double variance : variances) {
    bits += variance > level ? 0.5 * std::log2(variance / level) : 0;
  }
  return bits;
}

// The level at which the chosen forms take `bits`.
double level_of(const std::vector<FormOptions>& options, const std::vector<std::size_t>& choice,
                double bits) {
  double low = -200, high = 200;  // log2
  for (int i = 0; i < 100; ++i) {
    const double middle = 0.5 * (low + high);
    double taken = 0;
    for (std::size_t layer = 0; layer < options.size(); ++layer) {
      taken += bits_at(options[layer][choice[layer]].variances, std::exp2(middle));
    }
    (taken > bits ? low : high) = middle;
  }
  return std::exp2(high);
}

// From one option of a layer to another.
struct Upgrade {
  std::size_t layer = 0, from = 0, to = 0;
  double saved = 0, products = 0;  // bits, and what they cost

  double rate() const { return saved / std::max(products, 1e-9); }
};

// Where no step of a hull fits any more: the option that saves most for what is left. False if none does.
bool spend_rest(const std::vector<FormOptions>& options, double level,
                std::vector<std::size_t>& choice, double& left) {
  Upgrade best;
  for (std::size_t layer = 0; layer < options.size(); ++layer) {
    const FormOption& now = options[layer][choice[layer]];
    for (std::size_t to = choice[layer] + 1; to < options[layer].size(); ++to) {
      const FormOption& other = options[layer][to];
      const Upgrade step{layer, choice[layer], to,
                         bits_at(now.variances, level) - bits_at(other.variances, level),
                         other.products - now.products};
      if (step.products <= left && step.saved > best.saved) {
        best = step;
      }
    }
  }
  if (best.saved <= 0) {
    return false;
  }
  choice[best.layer] = best.to;
  left -= best.products;
  return true;
}

// The steps of a layer's hull, by falling rate.
std::vector<Upgrade> upgrades_of(const FormOptions& options, std::size_t layer, double level) {
  std::vector<double> bits;
  for (const FormOption& option : options) {
    bits.push_back(bits_at(option.variances, level));
  }
  std::vector<Upgrade> hull;
  for (std::size_t to = 1; to < options.size(); ++to) {
    const auto step = [&](std::size_t from) {
      return Upgrade{layer, from, to, bits[from] - bits[to],
                     options[to].products - options[from].products};
    };
    Upgrade next = step(hull.empty() ? 0 : hull.back().to);
    while (!hull.empty() && next.rate() >= hull.back().rate()) {
      next = step(hull.back().from);
      hull.pop_back();
    }
    if (next.saved > 0) {
      hull.push_back(next);
    }
  }
  return hull;
}

}  // namespace

double expected_error(const std::vector<FormOptions>& options,
                      const std::vector<std::size_t>& choice, double bits) {
  const double level = level_of(options, choice, bits);
  double error = 0;
  for (std::size_t layer = 0; layer < options.size(); ++layer) {
    for (const double variance : options[layer][choice[layer]].variances) {
      error += std::min(variance, level);
    }
  }
  return error;
}

std::vector<std::size_t> fastest_forms(const std::vector<FormOptions>& options, double bits) {
  std::vector<std::size_t> choice;
  for (const FormOptions& layer : options) {
    choice.push_back(layer.size() - 1);
  }
  const double best = expected_error(options, choice, bits);
  std::size_t most = 0;
  for (const FormOptions& layer : options) {
    most = std::max(most, layer.size());
  }
  for (std::size_t slower = most; slower-- > 0;) {  // steps below form full, which all layers have
    std::vector<std::size_t> faster;
    for (const FormOptions& layer : options) {
      faster.push_back(layer.size() - 1 - std::min(slower, layer.size() - 1));
    }
    if (expected_error(options, faster, bits) <= kMostError * best) {
      return faster;
    }
  }
  return choice;
}

std::vector<std::size_t> share_products(const std::vector<FormOptions>& options, double bits,
                                        double products) {
  std::vector<std::size_t> choice(options.size(), 0);
  const double level = level_of(options, choice, bits);
  std::vector<Upgrade> upgrades;
  double left = products * static_cast<double>(options.size());
  for (std::size_t layer = 0; layer < options.size(); ++layer) {
    left -= options[layer].front().products;
    const std::vector<Upgrade> of_layer = upgrades_of(options[layer], layer, level);
    upgrades.insert(upgrades.end(), of_layer.begin(), of_layer.end());
  }
  std::stable_sort(upgrades.begin(), upgrades.end(),
                   [](const Upgrade& a, const Upgrade& b) { return a.rate() > b.rate(); });
  for (const Upgrade& upgrade : upgrades) {
    if (choice[upgrade.layer] == upgrade.from && upgrade.products <= left) {
      choice[upgrade.layer] = upgrade.to;
      left -= upgrade.products;
    }
  }
  while (spend_rest(options, level, choice, left)) {
  }
  return choice;
}

}  // namespace kvc
