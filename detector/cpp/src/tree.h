// Texts as trees: JSON, and the part of YAML in which configurations are written.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millisecond::detector {

struct Tree {
  enum class Kind { null, boolean, number, text, list, map };

  Kind kind = Kind::null;
  bool truth = false;
  double number = 0;
  std::string text;
  std::vector<Tree> items;
  std::vector<std::pair<std::string, Tree>> members;  // in the order of the text

  const Tree* find(std::string_view name) const;  // null where there is none
};

// Both throw std::invalid_argument with the line and what is wrong with it.
Tree parse_json(std::string_view text);
// Block mappings and sequences, flow collections, plain and quoted scalars: what a YAML writer makes of plain
// data.
Tree parse_yaml(std::string_view text);

}  // namespace millisecond::detector
