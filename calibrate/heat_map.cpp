#include "calibrate/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvc {
namespace {

constexpr int kPlot = 480, kLeft = 44, kTop = 40;  // pixels
constexpr int kMaxNumbered = 16;                   // larger matrices have no numbers in their cells

struct Colour {
  double red, green, blue;
};

// Equal steps look equal, also without colour vision.
constexpr std::array<Colour, 5> kScale = {
    {{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}}};

std::string colour_of(double share) {
  const double at = std::clamp(share, 0.0, 1.0) * (kScale.size() - 1);
  const std::size_t first = std::min<std::size_t>(static_cast<std::size_t>(at), kScale.size() - 2);
  const double part = at - static_cast<double>(first);
  const auto mix = [&](double Colour::*channel) {
    return static_cast<int>(
        std::lround(kScale[first].*channel * (1 - part) + kScale[first + 1].*channel * part));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(&Colour::red), mix(&Colour::green),
                     mix(&Colour::blue));
}

std::string cell(int row, int column, double width, double value, double share, bool numbered) {
  const double x = kLeft + column * width, y = kTop + row * width;
  std::string svg = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\">"
      "<title>layers {} and {}: {:.4f}</title></rect>\n",
      x, y, width + 0.3, width + 0.3, colour_of(share), row, column, value);
  if (numbered) {
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\" text-anchor=\"middle\" "
        "font-size=\"{:.1f}\">{:.2f}</text>\n",
        x + width / 2, y + width / 2 + width / 10, share > 0.6 ? "#000" : "#fff", width / 3.2,
        value);
  }
  return svg;
}

std::string labels(int size, double width) {
  std::string svg;
  const int step = std::max(1, (size + kMaxNumbered - 1) / kMaxNumbered);
  for (int layer = 0; layer < size; layer += step) {
    const double at = (layer + 0.5) * width;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", kLeft + at,
                       kTop + kPlot + 16, layer);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 6,
                       kTop + at + 4, layer);
  }
  return svg + fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">layer</text>\n",
                           kLeft + kPlot / 2, kTop + kPlot + 32);
}

std::string legend(double low, double high) {
  constexpr int kSteps = 48;
  const int x = kLeft + kPlot + 20;
  const double height = static_cast<double>(kPlot) / kSteps;
  std::string svg;
  for (int i = 0; i < kSteps; ++i) {
    svg += fmt::format("<rect x=\"{}\" y=\"{:.2f}\" width=\"16\" height=\"{:.2f}\" fill=\"{}\"/>\n",
                       x, kTop + i * height, height + 0.3, colour_of(1 - (i + 0.5) / kSteps));
  }
  for (int i = 0; i <= 4; ++i) {
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\">{:.2f}</text>\n", x + 22,
                       kTop + kPlot * i / 4.0 + 4, high + (low - high) * i / 4);
  }
  return svg;
}

}  // namespace

std::string heat_map(const std::string& title, std::span<const double> values, int size, double low,
                     double high) {
  const double width = static_cast<double>(kPlot) / size;
  std::string cells;
  for (int row = 0; row < size; ++row) {
    for (int column = 0; column < size; ++column) {
      const double value = values[static_cast<std::size_t>(row * size + column)];
      if (std::isfinite(value)) {
        cells += cell(row, column, width, value, high > low ? (value - low) / (high - low) : 1,
                      size <= kMaxNumbered);
      }
    }
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
             "font-family=\"sans-serif\" font-size=\"12\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
             "<text x=\"{}\" y=\"24\" font-size=\"15\">{}</text>\n",
             kLeft + kPlot + 90, kTop + kPlot + 44, kLeft, title) +
         cells + labels(size, width) + legend(low, high) + "</svg>\n";
}

}  // namespace kvc
