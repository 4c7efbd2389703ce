// The characters of a text that becomes a tree, and its scalars.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tree.h"

namespace millisecond::detector {

// What fails throws std::invalid_argument with the line.
class Scalars {
 public:
  explicit Scalars(std::string_view text) : text_(text) {}

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool at_end() const { return at_ >= text_.size(); }
  bool at_line_end() const { return at_end() || peek() == '\n' || peek() == '\r'; }
  bool at_dash() const { return peek() == '-' && (peek(1) == ' ' || peek(1) == '\n' || peek(1) == '\0'); }
  bool at_key() const;  // whether `key:` stands here
  size_t column() const;

  void skip() { ++at_; }  // a character
  void skip_spaces();
  void skip_space();  // spaces, ends of lines and comments

  // inside: of a flow collection, or a key: a plain one ends at a comma, bracket or colon too.
  Tree scalar(bool inside);

  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::string single_quoted();
  std::string double_quoted();
  void escape(std::string& text);
  uint32_t hexadecimal(size_t digits);

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace millisecond::detector
