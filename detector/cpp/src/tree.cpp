#include "tree.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <stdexcept>

namespace millisecond::detector {
namespace {

constexpr int DEEPEST = 64;           // levels: a text must not exhaust the stack
constexpr size_t MOST_KEYS = 10'000;  // of a map: a text must not take for ever

void append_utf8(std::string& to, uint32_t code) {
  if (code < 0x80) {
    to += static_cast<char>(code);
  } else if (code < 0x800) {
    to += static_cast<char>(0xC0 | code >> 6);
    to += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    to += static_cast<char>(0xE0 | code >> 12);
    to += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    to += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    to += static_cast<char>(0xF0 | code >> 18);
    to += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    to += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    to += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// A plain scalar means a number, a truth value or nothing where it reads like one.
Tree plain_scalar(std::string_view text) {
  Tree value;
  value.text = text;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value.number);
  if (!text.empty() && error == std::errc() && end == text.data() + text.size() && text != "inf" &&
      text != "nan") {
    value.kind = Tree::Kind::number;
  } else if (text == "true" || text == "false") {
    value.kind = Tree::Kind::boolean;
    value.truth = text == "true";
  } else if (text != "null" && text != "~" && !text.empty()) {
    value.kind = Tree::Kind::text;
  }
  return value;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Tree json() {
    skip_space();
    Tree value = flow(0);
    skip_space();
    if (at_ < text_.size()) fail("text behind the value");
    return value;
  }

  Tree yaml() {
    skip_space();
    if (at_ == text_.size()) return {};
    Tree value = block(0);
    if (at_ < text_.size()) fail("a line does not belong to what stands above it");
    return value;
  }

 private:
  // ---- characters ----

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  bool at_line_end() const { return at_ >= text_.size() || peek() == '\n' || peek() == '\r'; }

  void skip_spaces() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }

  // Spaces, ends of lines and comments.
  void skip_space() {
    for (;;) {
      while (at_ < text_.size() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r')) ++at_;
      const bool alone = at_ == 0 || text_[at_ - 1] == ' ' || text_[at_ - 1] == '\n';
      if (peek() != '#' || !alone) return;
      while (at_ < text_.size() && peek() != '\n') ++at_;
    }
  }

  size_t column() const {
    const size_t end = at_ == 0 ? std::string_view::npos : text_.rfind('\n', at_ - 1);
    return end == std::string_view::npos ? at_ : at_ - end - 1;
  }

  bool at_dash() const { return peek() == '-' && (peek(1) == ' ' || peek(1) == '\n' || peek(1) == '\0'); }

  [[noreturn]] void fail(const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + std::min(at_, text_.size()), '\n');
    throw std::invalid_argument("line " + std::to_string(line) + ": " + what);
  }

  // ---- block style ----

  Tree block(int depth) {
    if (depth > DEEPEST) fail("nested too deeply");
    return at_dash() ? block_list(depth) : block_map(depth);
  }

  Tree block_list(int depth) {
    Tree list;
    list.kind = Tree::Kind::list;
    const size_t indent = column();
    while (at_ < text_.size() && column() == indent && at_dash()) {
      ++at_;
      skip_spaces();
      if (at_line_end()) skip_space();
      if (at_ == text_.size() || column() <= indent) fail("an empty entry");
      const bool nested = at_dash() || starts_entry();
      list.items.push_back(nested ? block(depth + 1) : inline_value(depth + 1));
    }
    return list;
  }

  Tree block_map(int depth) {
    Tree map;
    map.kind = Tree::Kind::map;
    const size_t indent = column();
    while (at_ < text_.size() && column() == indent && !at_dash()) {
      std::string key = scalar(true).text;
      if (peek() != ':') fail("expected `key: value`");
      ++at_;
      skip_spaces();
      Tree value;
      if (at_line_end() || peek() == '#') {
        skip_space();
        const bool below = at_ < text_.size() && (column() > indent || (column() == indent && at_dash()));
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

  // Whether `key:` stands here.
  bool starts_entry() const {
    if (peek() == '[' || peek() == '{') return false;
    for (size_t i = at_; i < text_.size() && text_[i] != '\n'; ++i) {
      const char next = i + 1 < text_.size() ? text_[i + 1] : '\n';
      if (text_[i] == ':' && (next == ' ' || next == '\n')) return true;
    }
    return false;
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
    ++at_;
    for (skip_space(); peek() != ']'; skip_space()) {
      list.items.push_back(flow(depth + 1));
      skip_space();
      if (peek() == ',')
        ++at_;
      else if (peek() != ']')
        fail("expected , or ]");
    }
    ++at_;
    return list;
  }

  Tree flow_map(int depth) {
    Tree map;
    map.kind = Tree::Kind::map;
    ++at_;
    for (skip_space(); peek() != '}'; skip_space()) {
      std::string key = scalar(true).text;
      skip_space();
      if (peek() != ':') fail("expected : behind a key");
      ++at_;
      skip_space();
      add(map, std::move(key), flow(depth + 1));
      skip_space();
      if (peek() == ',')
        ++at_;
      else if (peek() != '}')
        fail("expected , or }");
    }
    ++at_;
    return map;
  }

  void add(Tree& map, std::string key, Tree value) const {
    if (map.members.size() >= MOST_KEYS) fail("too many keys");
    if (map.find(key)) fail("the key " + key + " stands twice");
    map.members.emplace_back(std::move(key), std::move(value));
  }

  // ---- scalars ----

  // inside: of a flow collection, or a key: a plain one ends at a comma, bracket or colon too.
  Tree scalar(bool inside) {
    if (peek() == '"' || peek() == '\'') {
      Tree value;
      value.kind = Tree::Kind::text;
      value.text = peek() == '"' ? double_quoted() : single_quoted();
      return value;
    }
    const size_t first = at_;
    while (!at_line_end()) {
      const char c = peek(), next = peek(1);
      const bool apart = next == ' ' || next == '\n' || next == '\r' || next == '\0';
      if (inside && (c == ',' || c == ']' || c == '}' || c == '[' || c == '{' || (c == ':' && apart))) break;
      if (c == ' ' && next == '#') break;
      ++at_;
    }
    std::string_view found = text_.substr(first, at_ - first);
    while (!found.empty() && (found.back() == ' ' || found.back() == '\t')) found.remove_suffix(1);
    if (found.empty()) fail("expected a value");
    if (std::string_view("&*!|>%@`").find(found[0]) != std::string_view::npos)
      fail("expected a plain value");  // what a configuration never has
    return plain_scalar(found);
  }

  std::string single_quoted() {
    std::string text;
    for (++at_; at_ < text_.size(); ++at_) {
      if (peek() == '\'' && peek(1) != '\'') {
        ++at_;
        return text;
      }
      if (peek() == '\'') ++at_;
      text += peek();
    }
    fail("a quote is not closed");
  }

  std::string double_quoted() {
    std::string text;
    for (++at_; at_ < text_.size(); ++at_) {
      if (peek() == '"') {
        ++at_;
        return text;
      }
      if (peek() == '\\') {
        ++at_;
        escape(text);
      } else {
        text += peek();
      }
    }
    fail("a quote is not closed");
  }

  // Behind a backslash; stays on the last character of the escape.
  void escape(std::string& text) {
    static constexpr std::string_view NAMES = "\"\\/bfnrt0eav ", MEANINGS("\"\\/\b\f\n\r\t\0\x1b\a\v ", 13);
    const char c = peek();
    if (c == 'x') return append_utf8(text, hexadecimal(2));
    if (c == 'U') return append_utf8(text, hexadecimal(8));
    if (c == 'u') {
      uint32_t code = hexadecimal(4);
      if (code >= 0xD800 && code < 0xDC00 && peek(1) == '\\' && peek(2) == 'u') {  // a pair for one character
        at_ += 2;
        code = 0x10000 + ((code - 0xD800) << 10) + ((hexadecimal(4) - 0xDC00) & 0x3FF);
      }
      return append_utf8(text, code);
    }
    const size_t which = c == '\0' ? std::string_view::npos : NAMES.find(c);
    if (which == std::string_view::npos) fail("an unknown escape in a text");
    text += MEANINGS[which];
  }

  uint32_t hexadecimal(size_t digits) {
    uint32_t code = 0;
    const std::string_view text = text_.substr(std::min(at_ + 1, text_.size()), digits);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
    if (text.size() != digits || error != std::errc() || end != text.data() + digits || code > 0x10FFFF)
      fail("a wrong escape in a text");
    at_ += digits;
    return code;
  }

  std::string_view text_;
  size_t at_ = 0;
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
