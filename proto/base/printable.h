// What may stand raw in a line that people and their tools read: of a log, of a page of metrics, of a message on a
// terminal. Not printable are
//   controls: C0, DEL, C1 (a terminal obeys U+009B, some readers end a line at U+0085);
//   separators of lines and paragraphs, U+2028 and U+2029;
//   what changes the order of its neighbours: the bidirectional marks, embeddings, overrides and isolates;
//   what is not seen: soft hyphens, zero-width spaces, byte order marks, tags, fillers, annotations; but for joiners
//       and variation selectors,
//   without which some languages cannot be written;
//   what is no character: bytes that are no UTF-8, code points that Unicode keeps for itself.
//
// Each place writes by its own owner, all of them by these two functions: names are refused by check_adapter_name,
// lines of the log escaped by log.cpp, labels by escaped_label, messages of errors by error_message. Headers are
// percent-encoded (proto/url.h). What JSON carries besides is not escaped:
// its readers decode it, and a model may say anything.
#pragma once

#include <string>
#include <string_view>

namespace lorad {

bool is_printable(std::string_view text);

// What is not printable becomes \n, \r, \t or \uXXXX as in JSON strings (two of them beyond U+FFFF), so that a JSON
// text stays what it is;
// what is no UTF-8 becomes U+FFFD.
std::string escape_unprintable(std::string_view text);

}  // namespace lorad
