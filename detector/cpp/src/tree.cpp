#include "tree.h"

#include <stdexcept>

#include "scalars.h"

namespace millisecond::detector {
namespace {

constexpr int DEEPEST = 64;           // levels: a text must not exhaust the stack
constexpr size_t MOST_KEYS = 10'000;  // of a map: a text must not take for ever

class Reader : Scalars {
 public:
  using Scalars::Scalars;

  Tree json() {
    skip_space();
    Tree value = flow(0);
    skip_space();
    if (!at_end()) fail("text behind the value");
    return value;
  }

  Tree yaml() {
    skip_space();
    if (at_end()) return {};
    Tree value = block(0);
    if (!at_end()) fail("a line does not belong to what stands above it");
    return value;
  }

 private:
  // ---- block style ----

  Tree block(int depth) {
    if (depth > DEEPEST) fail("nested too deeply");
    return at_dash() ? block_list(depth) : block_map(depth);
  }

  Tree block_list(int depth) {
    Tree list;
    list.kind = Tree::Kind::list;
    const size_t indent = column();
    while (!at_end() && column() == indent && at_dash()) {
      skip();
      skip_spaces();
      if (at_line_end()) skip_space();
      if (at_end() || column() <= indent) fail("an empty entry");
      const bool nested = at_dash() || at_key();
      list.items.push_back(nested ? block(depth + 1) : inline_value(depth + 1));
    }
    return list;
  }

  Tree block_map(int depth) {
    Tree map;
    map.kind = Tree::Kind::map;
    const size_t indent = column();
    while (!at_end() && column() == indent && !at_dash()) {
      std::string key = scalar(true).text;
      if (peek() != ':') fail("expected `key: value`");
      skip();
      skip_spaces();
      Tree value;
      if (at_line_end() || peek() == '#') {
        skip_space();
        const bool below = !at_end() && (column() > indent || (column() == indent && at_dash()));
        if (below) value = block(depth + 1);
      } else {
        value = inline_value(depth + 1);
      }
      add(map, std::move(key), std::move(value));
    }
    return map;
  }

  // A value that stands behind its key or dash; then the line ends.
  Tree inline_value(int depth) {
    Tree value = flow(depth, false);
    skip_spaces();
    if (!at_line_end() && peek() != '#') fail("text behind the value");
    skip_space();
    return value;
  }

  // ---- flow style, which JSON is a part of ----

  Tree flow(int depth, bool inside = true) {
    if (depth > DEEPEST) fail("nested too deeply");
    if (peek() == '[') return flow_list(depth);
    if (peek() == '{') return flow_map(depth);
    return scalar(inside);
  }

  Tree flow_list(int depth) {
    Tree list;
    list.kind = Tree::Kind::list;
    skip();
    for (skip_space(); peek() != ']'; skip_space()) {
      list.items.push_back(flow(depth + 1));
      skip_space();
      if (peek() == ',')
        skip();
      else if (peek() != ']')
        fail("expected , or ]");
    }
    skip();
    return list;
  }

  Tree flow_map(int depth) {
    Tree map;
    map.kind = Tree::Kind::map;
    skip();
    for (skip_space(); peek() != '}'; skip_space()) {
      std::string key = scalar(true).text;
      skip_space();
      if (peek() != ':') fail("expected : behind a key");
      skip();
      skip_space();
      add(map, std::move(key), flow(depth + 1));
      skip_space();
      if (peek() == ',')
        skip();
      else if (peek() != '}')
        fail("expected , or }");
    }
    skip();
    return map;
  }

  void add(Tree& map, std::string key, Tree value) const {
    if (map.members.size() >= MOST_KEYS) fail("too many keys");
    if (map.find(key)) fail("the key " + key + " stands twice");
    map.members.emplace_back(std::move(key), std::move(value));
  }
};

}  // namespace

const Tree* Tree::find(std::string_view name) const {
  for (const auto& [key, value] : members)
    if (key == name) return &value;
  return nullptr;
}

Tree parse_json(std::string_view text) { return Reader(text).json(); }

Tree parse_yaml(std::string_view text) { return Reader(text).yaml(); }

}  // namespace millisecond::detector
