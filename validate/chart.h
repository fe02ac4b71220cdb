// Charts as inline SVG, which scroll sideways where the page is narrow: colours come from the page's style (classes axis, grid, bar, line, dot,
// mark).
#pragma once

#include <string>
#include <vector>

#include "validate/validate.h"

namespace kvc {

struct Tick {
  double at = 0;
  std::string label;
};

struct Axis {
  double begin = 0, end = 1;
  std::vector<Tick> ticks;
  std::string label;
};

struct Bar {
  double begin = 0, end = 0;  // on the x axis
  double height = 0;          // on the y axis
  std::string tip;            // shown on hover
};

// A labelled vertical line.
struct Mark {
  double at = 0;
  std::string label;
};

struct Point {
  double x = 0, y = 0;
  std::string tip;
};

// Points in their order.
struct Series {
  std::string name;  // in the legend
  std::vector<Point> points;
  bool is_joined = true;  // by a line
};

// Ticks at multiples of 1, 2 or 5 times a power of ten; the second one ends at the first tick from
// `largest` on.
Axis axis_between(double begin, double end, const std::string& label);
Axis axis_from_zero(double largest, const std::string& label);
// An axis of logarithms to the base 10, with a tick at every decade: whole decades around 10^begin to 10^end.
Axis axis_of_decades(double begin, double end, const std::string& label);

// Layers 0 to num_layers - 1; layer i spans i to i + 1.
Axis layer_axis(std::size_t num_layers);

std::string bar_chart(const Axis& x, const Axis& y, const std::vector<Bar>& bars,
                      const std::vector<Mark>& marks);
std::string line_chart(const Axis& x, const Axis& y, const std::vector<Point>& points);
// Each in a colour of its own, and a legend. Colours repeat after the eighth.
std::string series_chart(const Axis& x, const Axis& y, const std::vector<Series>& series);

// The charts of the validation report: the share of positions by their KL divergence, on a logarithmic scale.
std::string histogram_chart(const Comparison& comparison);
// Mean KL divergence along the sequence.
std::string position_chart(const Comparison& comparison);
// Bits per number of the original's cache, by layer.
std::string layer_chart(const std::vector<LayerShare>& layers);

}  // namespace kvc
