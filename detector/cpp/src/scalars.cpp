#include "scalars.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace millisecond::detector {
namespace {

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

}  // namespace

void Scalars::skip_spaces() {
  while (peek() == ' ' || peek() == '\t') ++at_;
}

void Scalars::skip_space() {
  for (;;) {
    while (at_ < text_.size() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r')) ++at_;
    const bool alone = at_ == 0 || text_[at_ - 1] == ' ' || text_[at_ - 1] == '\n';
    if (peek() != '#' || !alone) return;
    while (at_ < text_.size() && peek() != '\n') ++at_;
  }
}

size_t Scalars::column() const {
  const size_t end = at_ == 0 ? std::string_view::npos : text_.rfind('\n', at_ - 1);
  return end == std::string_view::npos ? at_ : at_ - end - 1;
}

void Scalars::fail(const std::string& what) const {
  const auto line = 1 + std::count(text_.begin(), text_.begin() + std::min(at_, text_.size()), '\n');
  throw std::invalid_argument("line " + std::to_string(line) + ": " + what);
}

bool Scalars::at_key() const {
  if (peek() == '[' || peek() == '{') return false;
  for (size_t i = at_; i < text_.size() && text_[i] != '\n'; ++i) {
    const char next = i + 1 < text_.size() ? text_[i + 1] : '\n';
    if (text_[i] == ':' && (next == ' ' || next == '\n')) return true;
  }
  return false;
}

Tree Scalars::scalar(bool inside) {
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

std::string Scalars::single_quoted() {
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

std::string Scalars::double_quoted() {
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
void Scalars::escape(std::string& text) {
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

uint32_t Scalars::hexadecimal(size_t digits) {
  uint32_t code = 0;
  const std::string_view text = text_.substr(std::min(at_ + 1, text_.size()), digits);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
  if (text.size() != digits || error != std::errc() || end != text.data() + digits || code > 0x10FFFF)
    fail("a wrong escape in a text");
  at_ += digits;
  return code;
}

}  // namespace millisecond::detector
